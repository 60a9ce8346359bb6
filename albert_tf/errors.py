"""The one exception that a user's input may raise."""


class UserError(Exception):
    """A mistake in what the user gave, told in one line: what was found, what was expected, what to do.

    The command line prints the message without a traceback and exits with code 2.
    """
