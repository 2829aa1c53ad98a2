"""What a profile is told with: one family of warnings, so that a face can show them all."""

from __future__ import annotations


class ProfileWarning(UserWarning):
    """Costs are not what was asked for, and why."""
