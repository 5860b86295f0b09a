"""A drafter of your own: it guesses what most often followed. `python examples/own_drafter.py [PROMPT]`"""

import sys
from collections import Counter, defaultdict

from specdecode.core.checkpoint.locate import locate_model
from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import FinishedEvent, Request
from specdecode.core.models.deepseek_v41.load import load_step_model
from specdecode.core.text.tokenizer import TextTokenizer


class Bigrams:
    """One request's; whatever it proposes, the text stays that of plain decoding."""

    def __init__(self):
        self.after, self.known = defaultdict(Counter), 0

    def propose(self, tokens, width):
        for n in range(self.known, len(tokens) - 1):
            self.after[tokens[n]][tokens[n + 1]] += 1
        self.known, drafts = len(tokens) - 1, [tokens[-1]]
        while len(drafts) <= width and self.after[drafts[-1]]:
            drafts.append(self.after[drafts[-1]].most_common(1)[0][0])
        return drafts[1:]


model = load_step_model(locate_model("demo"), max_length=256)
tokenizer = TextTokenizer.of(locate_model("demo"), model.config)
prompt = tuple(tokenizer.encode(sys.argv[1] if len(sys.argv) > 1 else "And God said, Let there be"))
texts = []
for proposer, width in ((None, 0), (Bigrams, 3)):
    engine = Engine(model, tokenizer=tokenizer, proposer=proposer)
    engine.submit(Request(prompt=prompt, max_tokens=128, draft_tokens=width))
    done = next(event.completion for event in engine.run() if isinstance(event, FinishedEvent))
    accepted = sum(round_.accepted for round_ in done.rounds)
    print(f"{width} drafts a round: {len(done.tokens)} tokens, {accepted} of them accepted drafts")
    texts.append(done.tokens)
print("the same tokens" if texts[0] == texts[1] else "DIFFERENT TOKENS")
