from .attention import Attend
from .attention_in import AttentionIn, ContextRows
from .attention_out import AttentionOut
from .compress import Compress
from .engram import Engram, EngramRows
from .heads import DraftHead, Features, Head, Tap
from .hyper import SublayerIn
from .indexer import Index
from .moe import Moe
from .probe import Gates, Inject, Project, Qdq
from .step import BlockInputs, Embed, History, Lookback, Mask, Merge, Verify
