"""Pages and tables of wing 3."""

from placewright.samples.views.pages import fragment, page, saved_page
from placewright.samples.views.tables import summary

__all__ = ["fragment", "page", "saved_page", "summary"]
