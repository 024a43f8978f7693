"""Watching a model's files: when to load again, and what came of it. The caller brings the time."""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.ports import LoadedModel, Model

INTERVAL_MS = 200.0  # soon enough for a person who waits; a look costs a few microseconds


class Watch:
    """Tells when the files of a model have changed and rest, and loads them beside the model in use.

    Files are compared by what ``fingerprint()`` says of them, so that a rename, a write in place and a link
    that is moved all count, on any system. A change is believed once it has stood still for one interval: a
    file that is being written is left alone.

    Both calls block (`poll` for a ``stat``, `load` for as long as a model takes): make them off the loop.
    """

    def __init__(
        self, model: Model, serving: LoadedModel | None = None, interval_ms: float = INTERVAL_MS
    ) -> None:
        self._model = model
        self._interval_s = interval_ms / 1000
        #: The model in use; set it when a candidate has taken over.
        self.serving = serving
        # That of the bytes which were read, where the model knows it: no change after the load is missed.
        self._tried: object = getattr(serving, "fingerprint", None) or model.fingerprint()
        self._seen = self._tried
        self._seen_since_s: float | None = None
        self._next_s = float("-inf")

    def poll(self, now_s: float) -> bool:
        """Look at the files, at most once per interval; True when there is something new to `load`."""
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._interval_s
        seen = self._model.fingerprint()
        if seen != self._seen or self._seen_since_s is None:
            self._seen, self._seen_since_s = seen, now_s
            return False
        rests = now_s - self._seen_since_s >= self._interval_s
        return rests and seen != self._tried

    def load(self) -> LoadedModel | HeadraceError | None:
        """Load what `poll` has found: a candidate, or the error, or ``None`` when it is the same model.

        The model in use is not touched. Each state of the files is tried once, so an error is told once.
        """
        self._tried = self._seen
        try:
            candidate = self._model.load(like=self.serving)
        except HeadraceError as error:
            return error
        # What was read may be newer than what was seen; that it was read is what counts.
        self._tried = getattr(candidate, "fingerprint", self._tried)
        if self.serving is not None and candidate.digest == self.serving.digest:
            candidate.close()
            return None
        return candidate

    def again(self) -> None:
        """Count the present state of the files as not tried."""
        self._tried = None
