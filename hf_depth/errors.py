"""
Which error is a mistake of the user: the scripts print it as one message; any other error keeps its traceback.

A mistake is

- a [`UserError`]: whoever finds bad input raises it, names the input and says what to do;
- what is wrong outside of the program: a file, a name on the Hub, a package that is missing, memory of a device.

So an error of Python or of a library that our code runs into (`int("x")`, shapes that do not fit) is a defect.
"""


class UserError(ValueError):
    """A mistake in what a user has given. Its message of one line names it and says what to do."""


def user_message(error: Exception) -> str | None:
    """
    What to tell the user about an error; `None` for a defect, whose traceback is to be shown.

    >>> user_message(KeyError("input_ids")) is None
    True
    >>> user_message(UserError("`--seed` must be a number."))
    '`--seed` must be a number.'
    """
    if isinstance(error, UserError | FloatingPointError):
        message = str(error)
        if "\nOriginal Traceback" in message:  # a worker of a `DataLoader` puts its traceback into the message
            message = message.rpartition(f"{type(error).__name__}: ")[2]
        return message.strip()
    if type(error).__name__ == "OutOfMemoryError":  # of torch, which is not imported for it
        return (
            f"{error}\nUse a smaller `--per_device_train_batch_size` with more `--gradient_accumulation_steps`, "
            "`--gradient_checkpointing`, or shorter sequences."
        )
    is_outside = isinstance(error, OSError | ImportError) and not isinstance(error, ConnectionError)
    if is_outside or type(error).__module__ == "datasets.exceptions":
        is_told = error.__cause__ is None or str(error.__cause__) in str(error)
        return str(error) if is_told else f"{error}\nThe cause: {error.__cause__}"
    return None
