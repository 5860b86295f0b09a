from .attention import Attend
from .attention_in import AttentionIn, ContextRows
from .attention_out import AttentionOut
from .compress import Compress
from .draft_head import DraftHead
from .draft_parts import DraftTokens, EveryRow
from .engram import Engram, EngramRows
from .heads import Features, Head, Tap
from .hyper import SublayerIn
from .indexer import Index
from .moe import Moe
from .moe_expert import ExpertsCombine, ExpertsLocal, Exchange
from .moe_tensor import ExpertsHidden, ExpertsRows, Route
from .output_parts import Expand, OutputGroups, OutputRows
from .probe import Gates, Inject, Project, Qdq
from .sequential import DraftRows, Join, Shift, Take, Widen
from .step import BlockInputs, Embed, History, Lookback, Merge
from .verify import Verify, VerifyMasked
