"""A session that need not be closed.

TensorFlow closes a session when Python deletes it, too, and when the process ends. Then it waits
for all tasks on which the session ran: for one that is stopped or cut off, as long as that lasts;
for one that exits meanwhile, now and then without end.
"""

import tensorflow.compat.v1 as tf


class Session(tf.Session):
    """As TensorFlow's.

    Attributes:
        closes: whether `close` does what it says; else it does nothing. Set it to False once tasks
            may have left, or are lost.
    """

    closes = True

    def close(self):
        if self.closes:
            super().close()
