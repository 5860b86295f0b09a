"""Model-agnostic drivers of a speculative step, as graph builders."""
