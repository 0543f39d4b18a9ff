"""Work that goes on beside other work: of some ranks while the others wait, and of a thread that watches a run.

No collective may take as long as a conversion or a download, which can be hours: those of NCCL and gloo give up after a
time that is set for steps. So the work is done by a thread, and all ranks exchange a word every few seconds until the
last is through.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any

from taojin.core.errors import StorageError, TaojinError
from taojin.core.storage import first_line

WORD_SECONDS = 5.0


@contextlib.contextmanager
def meanwhile(watch: Callable[[], None], over: threading.Event) -> Iterator[None]:
    """`watch` runs in a thread of its own until it returns, which it does soon after `over` is set at the end."""
    thread = threading.Thread(target=watch, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def together(
    work: Callable[[], Any] | None, gather: Callable[[Any], list[Any]], give_up: Callable[[], None] = lambda: None
) -> list[Any]:
    """What `work` of each rank returned, in rank order; None where a rank has none. All ranks must call it.

    gather: one value of each rank → all of them. give_up: asks the work of this rank to end, as another's has failed.
    Raises on all ranks what the first one met: a TaojinError, or an OSError as StorageError.
    """
    with ThreadPoolExecutor(1, "together") as pool:
        done = pool.submit(work) if work else None
        try:
            while True:
                words = gather(_word(done))
                for _, problem in words:
                    if problem is not None:
                        raise problem
                if all(ready for ready, _ in words):
                    return gather(done.result() if done else None)
        except BaseException:
            give_up()
            raise


def _word(done: Future[Any] | None) -> tuple[bool, TaojinError | None]:
    """Whether this rank is ready, and what it met."""
    if done is None:
        return True, None
    if not wait_for([done], WORD_SECONDS).done:
        return False, None
    try:
        done.result()
    except TaojinError as error:
        return True, error
    except OSError as error:
        return True, StorageError(first_line(error))
    return True, None
