"""The state of a table (filters, order, page) as an immutable value that prints itself as a query string.

Every view has a stable address: links that sort, filter or turn the page are made from the state, and work without a
script. Unknown parameters are dropped, so that an address never grows by what nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlencode


@dataclass(frozen=True)
class TableState:
    """Filters in the order of `names`; `order` is a field name, with a leading ``-`` for descending."""

    names: tuple[str, ...] = ()
    filters: tuple[tuple[str, str], ...] = ()
    order: str = ""
    default_order: str = ""
    page_token: str = ""
    page_size: int = 100
    default_page_size: int = 100

    @classmethod
    def parse(
        cls,
        query: Mapping[str, str],
        *,
        names: Iterable[str],
        orders: Iterable[str] = (),
        default_order: str = "",
        page_size: int = 100,
    ) -> TableState:
        """The state in `query`. Empty filters are none; an order that is not in `orders` is the default one."""
        known = tuple(names)
        allowed = set(orders)
        order = query.get("order", "")
        if order.removeprefix("-") not in allowed:
            order = default_order
        try:
            size = min(max(int(query.get("page_size", page_size)), 10), 500)
        except ValueError:
            size = page_size
        return cls(
            names=known,
            filters=tuple((n, query[n].strip()) for n in known if query.get(n, "").strip()),
            order=order,
            default_order=default_order,
            page_token=query.get("page_token", ""),
            page_size=size,
            default_page_size=page_size,
        )

    def __str__(self) -> str:
        """``?class=corrupt&order=-size_bytes``, or an empty text when everything is the default."""
        pairs = list(self.filters)
        if self.order and self.order != self.default_order:
            pairs.append(("order", self.order))
        if self.page_size != self.default_page_size:
            pairs.append(("page_size", str(self.page_size)))
        if self.page_token:
            pairs.append(("page_token", self.page_token))
        return "?" + urlencode(pairs) if pairs else ""

    @property
    def spelled(self) -> TableState:
        """The same with its order always written out, for addresses whose own default is another one."""
        return replace(self, default_order="")

    def get(self, name: str) -> str:
        """The value of a filter, or an empty text."""
        return dict(self.filters).get(name, "")

    @property
    def filtered(self) -> bool:
        """Whether any filter is set."""
        return bool(self.filters)

    def with_filter(self, name: str, value: str) -> TableState:
        """The same with one filter set (an empty value removes it), back on the first page."""
        if name not in self.names:
            raise KeyError(name)
        kept = {n: v for n, v in self.filters if n != name}
        if value:
            kept[name] = value
        return replace(self, filters=tuple((n, kept[n]) for n in self.names if n in kept), page_token="")

    def without(self, *names: str) -> TableState:
        """The same without some filters, back on the first page; without arguments, with none at all."""
        dropped = set(names) or set(self.names)
        return replace(self, filters=tuple((n, v) for n, v in self.filters if n not in dropped), page_token="")

    def sorted_by(self, field: str, *, descending_first: bool = False) -> TableState:
        """The state behind a column's head: sort by it, or turn the order when it is sorted already."""
        first, second = (f"-{field}", field) if descending_first else (field, f"-{field}")
        return replace(self, order=second if self.order == first else first, page_token="")

    def direction(self, field: str) -> str | None:
        """The column's ``aria-sort`` (ascending, descending), None when it does not decide the order."""
        if self.order.removeprefix("-") != field:
            return None
        return "descending" if self.order.startswith("-") else "ascending"

    def at_page(self, token: str | None) -> TableState:
        """The same on another page; None is the first."""
        return replace(self, page_token=token or "")

    def fields(self) -> tuple[tuple[str, str], ...]:
        """What a filter form must carry along as hidden fields (order and page size, never the page)."""
        pairs = []
        if self.order and self.order != self.default_order:
            pairs.append(("order", self.order))
        if self.page_size != self.default_page_size:
            pairs.append(("page_size", str(self.page_size)))
        return tuple(pairs)
