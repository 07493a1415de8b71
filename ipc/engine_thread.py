"""The thread that owns a worker's engine, and the bounded queues to it and from it."""

import logging
import queue
import threading
import time
from collections.abc import Callable

from .engine_driver import Command, EngineDied, EngineDriver, EngineReady, Event
from .patience import Patience
from .served_engine import EngineLoader

logger = logging.getLogger("octavo.worker")

MAX_COMMANDS = 1024  # each queue has one thread that puts, which looks before it does
MAX_EVENTS = 256
IDLE = 0.05  # seconds between two looks when there is nothing to do
_FULL = 0.0002  # seconds between two looks when the queue of events is full


class EngineThread:
    """Loads an engine and drives it. Everything about the engine happens on this thread.

    ``notify`` is called from it when there are events.
    """

    def __init__(
        self,
        load: EngineLoader,
        notify: Callable[[], None],
        *,
        figures_every: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.beat = clock()  # when the thread last went round
        self.loaded = False
        self._load = load
        self._notify = notify
        self._figures_every = figures_every
        self._clock = clock
        self._patience = Patience()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after its present step, and wait a moment for it."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            logger.exception("the engine's thread ended")
            self._put(EngineDied(f"{type(error).__name__}: {error}"))

    def _serve(self) -> None:
        loaded = self._load()
        driver = EngineDriver(loaded)
        self.beat = self._clock()
        self.loaded = True
        self._put(EngineReady(loaded.models, loaded.capacity))
        try:
            self._drive(driver)
        except BaseException:
            waiting = driver.release()
            if waiting is not None:  # what was computed is not computed again elsewhere
                self._put(waiting)
            raise

    def _drive(self, driver: EngineDriver) -> None:
        figures_due = 0.0
        while not self._stopping.is_set():
            self.beat = self._clock()
            self._obey(driver)
            if driver.num_runs:
                self._step(driver)
            if self._clock() >= figures_due:
                figures_due = self._clock() + self._figures_every
                self._put(driver.figures())

    def _step(self, driver: EngineDriver) -> None:
        began = self._clock()
        stepped = driver.step(began)
        took = self._clock() - began
        if stepped is not None:  # it waits for nothing else
            self._put(stepped)
        self._patience.observe(took)
        late = driver.account()
        if late is not None:
            self._put(late)

    def _obey(self, driver: EngineDriver) -> None:
        """Take the commands that are there; wait for one only if the engine has nothing to do.

        Requests that come together then wait a moment for each other.
        """
        idle = not driver.has_work
        wait, until = (IDLE if idle else 0.0), None
        while wait or not self.commands.empty():
            try:
                command = self.commands.get(block=wait > 0, timeout=wait or None)
            except queue.Empty:
                return
            for event in driver.handle(command):
                self._put(event)
            wait = 0.0
            if idle and driver.has_work and driver.has_room:
                now = self._clock()
                until = until or now + self._patience.round
                wait = max(min(self._patience.seconds, until - now), 0.0)

    def _put(self, event: Event) -> None:
        while self.events.qsize() >= MAX_EVENTS and not self._stopping.is_set():
            self._notify()
            time.sleep(_FULL)
            self.beat = self._clock()
        self.events.put(event)
        if self.events.qsize() == 1:  # behind others it is taken with them
            self._notify()
