"""Selects which of TensorFlow's log lines a task prints."""

import logging

import tensorflow.compat.v1 as tf


def show_our_lines() -> None:
    """Shows the lines that hooks log about steps, and real warnings."""

    def ours(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if record.levelno > logging.INFO:
            return "is deprecated" not in text
        return text.startswith("[worker") or " = " in text  # LoggingTensorHook's own form

    tf.logging.set_verbosity(tf.logging.INFO)
    logger = tf.get_logger()
    logger.addFilter(ours)
    for handler in logger.handlers:
        handler.setFormatter(logging.Formatter("%(message)s"))
