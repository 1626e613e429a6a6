"""The engine's own configuration, as JSON, as text, and in its log."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import TargetError
from app.vllm.facts import EngineFacts, parse_config_text, parse_server_info, split_pairs
from app.vllm.startup_log import StartupFacts, parse_startup_log
from tests.unit.wire.raw_http import capture
from tests.unit.wire.test_fields import json_values

TEXT = json.loads(capture("engine/with-lmcache.server_info.json"))["vllm_config"]


def test_the_json_form() -> None:
    facts = parse_server_info(json.loads(capture("engine/with-lmcache.server_info.config_json.json")))
    assert (facts.model, facts.served_model_name) == ("/models/tiny-llama", "tiny-llama")
    assert (facts.dtype, facts.kv_cache_dtype, facts.quantization) == ("bfloat16", "auto", None)
    assert (facts.block_size, facts.num_gpu_blocks, facts.max_model_len, facts.max_logprobs) == (32, 512, 4096, 20)
    assert (facts.enable_prefix_caching, facts.enable_chunked_prefill, facts.enforce_eager) == (True, True, True)
    assert (facts.max_num_batched_tokens, facts.max_num_seqs, facts.mamba_cache_mode) == (2048, 8, "none")
    assert (facts.tensor_parallel_size, facts.pipeline_parallel_size, facts.data_parallel_size) == (1, 1, 1)
    assert (facts.speculative, facts.draft_layers, facts.batch_invariant, facts.device) == (False, 0, False, "cpu")
    assert (facts.kv_connector, facts.kv_role) == ("LMCacheMPConnector", "kv_both")
    assert facts.lmcache_transfer_mode == "lmcache_driven"
    assert facts.connector_options["lmcache.mp.port"] == 5555


def test_the_text_form_says_the_same_as_far_as_it_goes() -> None:
    facts = parse_server_info({"vllm_config": TEXT})
    whole = parse_server_info(json.loads(capture("engine/with-lmcache.server_info.config_json.json")))
    names = "model served_model_name dtype kv_cache_dtype quantization revision tokenizer max_model_len seed device"
    names += " enable_prefix_caching enable_chunked_prefill tensor_parallel_size pipeline_parallel_size"
    names += " data_parallel_size enforce_eager speculative draft_layers"
    for name in names.split():
        assert getattr(facts, name) == getattr(whole, name), name
    assert facts.block_size is None


def test_nested_values_do_not_leak_into_the_outer_level() -> None:
    pairs = split_pairs("a=1, b=C(d=2, e=[1, 'x, y=3'], f={'g': (1,)}), h='q, r=4', i=None")
    assert pairs == {"a": "1", "b": "C(d=2, e=[1, 'x, y=3'], f={'g': (1,)})", "h": "'q, r=4'", "i": "None"}
    assert split_pairs(TEXT)["kernel_config"].startswith("KernelConfig(")


def test_speculative_decoding_leaves_its_layers_unknown() -> None:
    facts = parse_config_text("model='m', speculative_config=SpeculativeConfig(method='eagle'), dtype=torch.float16")
    assert (facts.speculative, facts.draft_layers, facts.dtype) == (True, None, "float16")
    assert parse_config_text("model='m'").speculative is None
    assert parse_server_info({"vllm_config": {"speculative_config": {"method": "eagle"}}}).draft_layers is None


def test_a_hugging_face_token_is_not_kept() -> None:
    body = json.loads(capture("engine/with-lmcache.server_info.config_json.json"))
    body["vllm_config"]["model_config"]["hf_token"] = "hf_secret"
    body["vllm_config"]["kv_transfer_config"]["kv_connector_extra_config"]["nested"] = {"x": "hf_secret"}
    assert "hf_secret" not in repr(parse_server_info(body))


@pytest.mark.parametrize("body", [None, [], {}, {"vllm_config": ""}, {"vllm_config": 5}, {"vllm_config": "no pairs"}])
def test_what_is_no_configuration_is_refused(body: object) -> None:
    with pytest.raises(TargetError):
        parse_server_info(body)


@given(json_values)
def test_arbitrary_json_is_read_or_refused(value: object) -> None:
    for body in (value, {"vllm_config": value}, {"vllm_config": {"model_config": value, "cache_config": value}}):
        try:
            parse_server_info(body)
        except TargetError as error:
            assert error.kind == "unreadable"


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert isinstance(parse_config_text(text), EngineFacts)
    assert isinstance(parse_startup_log(text), StartupFacts)


def test_the_log_of_an_engine_driven_start() -> None:
    log = parse_startup_log(capture("logs/vllm-startup.log").decode())
    assert log.version == "0.32.0"
    assert (log.facts.dtype, log.facts.kv_cache_dtype, log.facts.max_model_len) == ("bfloat16", "auto", 4096)
    assert (log.connector, log.transfer_mode) == ("LMCacheMPConnector", "engine_driven")
    assert log.connector_source == "lmcache.integration.vllm.lmcache_mp_connector"
    assert (log.cache_model_name, log.group_tokens_per_block, log.scheduler_block_size) == (
        "/models/tiny-llama",
        (32,),
        32,
    )
    assert (log.kv_cache_tokens, log.prompt_tokens_details, log.context_registered) == (16_384, True, True)
    assert (log.options["mq_timeout"], log.options["heartbeat_interval"]) == ("300.0", "10.0")
    assert log.instance_ids == ("2992799024161515505",)
    assert log.engine_kv_format == "NL_X_NB_NH_BS_CS"
    assert log.attention_block_size is None
    assert log.starts == 1


def test_the_log_of_a_start_that_hangs_in_the_wrong_mode() -> None:
    log = parse_startup_log(capture("logs/vllm-wrong-transfer-mode-hangs.log").decode())
    assert log.options["mp_transfer_mode"] == "auto"
    assert log.transfer_mode == "engine_driven"
    assert log.context_registered is None
    assert log.kv_cache_tokens == 2_097_152


def test_the_last_start_counts() -> None:
    once = capture("logs/vllm-startup.log").decode()
    again = once.replace("torch.bfloat16", "torch.float16").replace("2992799024161515505", "7")
    log = parse_startup_log(once + again)
    assert (log.starts, log.facts.dtype, log.instance_ids) == (2, "float16", ("7",))


def test_a_hybrid_models_block_size() -> None:
    line = "(EngineCore pid=1) INFO [interface.py:1097] Setting attention block size to 784 tokens to"
    log = parse_startup_log(line)
    assert log.attention_block_size == 784
    assert log.seen


def test_a_foreign_log_says_nothing() -> None:
    assert not parse_startup_log("hello\nworld = 5\n").seen
    assert not parse_startup_log(capture("logs/lmcache-server.log").decode()).seen
