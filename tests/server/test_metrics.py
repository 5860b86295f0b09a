"""/metrics: names as vLLM has them, and figures that add up with what answers say."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def samples(live) -> dict[str, float]:
    """Name, and for labelled ones NAME{label}, to value."""
    made = live.request("GET", "/metrics")
    assert made.headers["Content-Type"].startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(made.body.decode()):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name != "model_name"]
            found[sample.name + "".join(f"{{{label}}}" for label in labels)] = sample.value
    return found


def test_counters_are_those_of_the_answers(demo):
    before = samples(demo)
    usage = demo.client.completions.create(model="demo", prompt="And God said", max_tokens=40, temperature=0, n=2).usage
    after = samples(demo)
    grown = {name: after[name] - before[name] for name in after}
    told = usage.speculative
    assert grown["vllm:spec_decode_num_drafts_total"] == told["rounds"] > 0
    assert grown["vllm:spec_decode_num_draft_tokens_total"] == told["proposed"]
    assert grown["vllm:spec_decode_num_accepted_tokens_total"] == told["accepted"]
    at = [grown[f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{{place}}}"] for place in range(5)]
    assert at == told["accepted_per_position"]
    assert grown["vllm:prompt_tokens_total"] == 2 * usage.prompt_tokens
    assert grown["vllm:generation_tokens_total"] == usage.completion_tokens
    assert grown["vllm:request_success_total{length}"] == 2
    for name in ("time_to_first_token_seconds", "time_per_output_token_seconds", "e2e_request_latency_seconds"):
        assert grown[f"vllm:{name}_count"] == 2
        assert grown[f"vllm:{name}_sum"] > 0


def test_gauges_come_back_to_nothing(demo):
    demo.wait(demo.idle)
    demo.client.completions.create(model="demo", prompt="x", max_tokens=2)
    found = samples(demo)
    assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0
    assert found["vllm:kv_cache_usage_perc"] == 0
    assert found["specdecode:free_pages"] == demo.engine.load.pages
