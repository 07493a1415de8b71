"""The sizes that the wire allows; docs/protocol.md section 2 states the same numbers."""

PROTOCOL_VERSION = 1
DEFAULT_ADDRESS = "tcp://127.0.0.1:7766"
DEFAULT_WORKER_ADDRESS = "tcp://127.0.0.1:7767"

MAX_FRAME_BYTES = 4 << 20  # the sockets themselves refuse longer frames
MAX_HEADER_BYTES = 1 << 20
MAX_PROMPT_HEADER_BYTES = 4 << 20  # headers that may hold a prompt as text
RUN_HEADER_BYTES = 4096  # what a run's header may have beyond its submit's
MAX_FRAMES = 3
MAX_BUNDLED = 256  # messages in a bundle

MAX_ARRAY = 4096
MAX_MAP = 256
MAX_ID_BYTES = 128
MAX_NAME_BYTES = 64
MAX_LABEL_BYTES = 256  # tenants and models
MAX_REASON_BYTES = 256
MAX_ERROR_BYTES = 4096
MAX_COUNT = 1 << 48
MAX_SEED = (1 << 64) - 1
MAX_SECONDS = 1e9
MAX_MODELS = 64
MAX_SAMPLES = 1024
MAX_WINDOW = 65_536
DEFAULT_WINDOW = 1024
ANSWER_LINGER = 0.25  # seconds, where a client waits for whole answers

ID_BYTES = 4  # one token id in an attachment
