from .attention import Attend
from .attention_in import AttentionIn, ContextRows
from .attention_out import AttentionOut
from .compress import Compress
from .draft_head import DraftHead
from .engram import Engram, EngramRows
from .heads import Features, Head, Tap
from .hyper import SublayerIn
from .indexer import Index
from .moe import Moe
from .probe import Gates, Inject, Project, Qdq
from .sequential import DraftRows, Join, Shift, Take, Widen
from .step import BlockInputs, Embed, History, Lookback, Merge
from .verify import Verify, VerifyMasked
