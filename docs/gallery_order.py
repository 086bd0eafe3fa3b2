"""The order of the examples in the gallery."""

ORDER = [
    "quickstart",
    "plot_movie_recommender",
    "plot_click_columns",
    "plot_learning_curve",
    "plot_scaling",
    "plot_popularity_bias",
    "plot_item_map",
    "plot_user_temperatures",
    "plot_als_or_bsl",
    "plot_losses_and_backbones",
    "plot_lightgcn",
    "plot_vae_samplers",
    "plot_recommend_named_items",
    "plot_new_items",
    "plot_context",
    "plot_word2vec_sessions",
    "plot_streams",
    "plot_grid_search",
    "plot_prism_alpha",
    "plot_adap_tau",
    "plot_optimizers",
    "plot_deepfm",
    "plot_fields",
    "plot_rafm",
    "plot_mixed_ranks",
    "plot_custom_components",
]


def place(filename):
    """Return the place of an example; those that are not in the list come last, by name."""
    name = filename.removesuffix(".py")
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)
