"""What a task prints."""

import logging

import tensorflow.compat.v1 as tf


def show_our_lines() -> None:
    """Of TensorFlow's own log, the steps and what is worse than advice to its developers."""

    def ours(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        return text.startswith("[worker") or (
            record.levelno > logging.INFO and "is deprecated" not in text
        )

    tf.logging.set_verbosity(tf.logging.INFO)
    logger = tf.get_logger()
    logger.addFilter(ours)
    for handler in logger.handlers:
        handler.setFormatter(logging.Formatter("%(message)s"))
