"""Pages and tables of wing 2."""

from placewright.layers.views.pages import fragment, page, saved_page, summary

__all__ = ["fragment", "page", "saved_page", "summary"]
