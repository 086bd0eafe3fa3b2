"""Usual names of the columns of interaction tables: users, items, values and times."""

import re
from numbers import Integral

# Names in lower case, without separators.
_RATINGS = ["rating", "score", "stars", "overall"]
_NAMES = {
    "user": "user customer client member visitor reviewer account uid",
    "item": "item movie product track song artist book article video game business recipe anime "
    "iid asin isbn sku stockcode",
    "value": f"{' '.join(_RATINGS)} value weight count plays playcount quantity",
    # Whole names: a release date belongs to an item, and a watch time is a value.
    "time": "timestamp time date datetime ts unixtime unixtimestamp eventtime eventtimestamp "
    "eventdate createdat createddate createdtime creationdate orderdate ordertime ordertimestamp "
    "purchasedate purchasetime invoicedate transactiondate transactiontime reviewdate reviewtime "
    "unixreviewtime clicktime ratedat playedat tdat",
}
_ROLES = {name: role for role, names in _NAMES.items() for name in names.split()}

# Names that pandas, Polars and others give to how often a group occurs; 0 is that of a Series
# without a name. In a table with other columns they may have any meaning.
_COUNTS = ["0", "count_all", "count_star()", "len", "n", "size"]

# Suffixes of names: "user_id".
_ENDING = re.compile("(id|idx|index)$")

# The type that RecBole's files give after a name: "user_id:token".
_TYPE = re.compile(":(token|float)(_seq)?$")


def role_of(name):
    """Return the role of a column by its name: "user", "item", "value", "time" or None."""
    name = _plain(name)
    role = _ROLES.get(_ENDING.sub("", name))
    return role if role in ("user", "item") else _ROLES.get(name)


def is_rating(name):
    """Return whether a column of values holds ratings, where low values mean dislike."""
    return _plain(name) in _RATINGS


def is_count(name):
    """Return whether a column beside groups of a table is the number of rows of each group."""
    return str(name) in _COUNTS


def _plain(name):
    """Return "userid" for "userId", "user_id", "User Id" and so on."""
    return re.sub(r"[\W_]", "", _TYPE.sub("", str(name))).lower()


def only_numbered(names):
    """Return whether names are only column numbers: 0, 1, ... or column_0, column_1, ..."""
    if all(isinstance(name, Integral) for name in names):
        return True
    parts = [re.fullmatch(r"(.*\D)(\d+)", str(name)) for name in names]
    if not all(parts) or len({part[1] for part in parts}) > 1 or role_of(parts[0][1]):
        return False
    numbers = [int(part[2]) for part in parts]
    return numbers == sorted(set(numbers))
