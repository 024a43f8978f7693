"""Errors 5xx: command line and settings."""

from __future__ import annotations

from headrace.errors.tree import Fault, HeadraceError


class UsageError(HeadraceError):
    """The command cannot run as asked."""


class TargetInvalid(UsageError):
    """{target!r} does not lead to an app: {problem}.

    Hint: name it as ``module:attribute``, such as ``app:app`` for ``app = App("...")`` in app.py.
    """

    code = "HR-E501"
    fault = Fault.YOURS


class SettingInvalid(UsageError):
    """Setting {name} from {origin} is not usable: {problem}.

    Unknown names are refused, so that a typing error shows.

    Hint: correct it where it was set; the README lists the settings with their defaults.
    """

    code = "HR-E502"
    fault = Fault.YOURS


class ExtraMissing(UsageError):
    """{feature} needs a package that is not installed.

    Hint: pip install 'headrace[{extra}]'
    """

    code = "HR-E503"
    fault = Fault.YOURS


class CodeUnknown(UsageError):
    """No error has the code {wanted}.

    Hint: ``headrace explain`` without a code lists them.
    """

    code = "HR-E504"
    fault = Fault.YOURS


class CommandInvalid(UsageError):
    """The command line cannot be followed: {problem}.

    Nothing was done.

    Hint: ``headrace --help``, or ``--help`` after a command.
    """

    code = "HR-E505"
    fault = Fault.YOURS


class SettingsUnreadable(UsageError):
    """Settings file {path} cannot be read: {problem}.

    Going on without it could mean another journal than the one that was meant.

    Hint: mend the file, or take it away.
    """

    code = "HR-E506"
    fault = Fault.YOURS


class MethodRefused(UsageError):
    """{method} does nothing here.

    Hint: POST the payload of one event.
    """

    code = "HR-E507"
    fault = Fault.YOURS


class OutputLost(UsageError):
    """What the command prints could not be written: {problem}.

    What it has done stands. A command that only shows something ends; any other goes on to its end, without
    further output.

    Hint: free space where the output goes; what is there of it is not whole. Commands that only show may be
    given again; of others, ``headrace status`` tells what they have done.
    """

    code = "HR-E508"
    fault = Fault.THEIRS
