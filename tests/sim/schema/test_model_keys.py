"""Models that a topology file brings along: by path, and by hand."""

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.run import main
from sim.schema import Problem, TopologyError, load
from sim.schema.transformer_keys import read_model
from sim.workloads.transformer import build
from tests.sim.workloads.test_huggingface import CONFIGS
from tests.support.cluster_files import topology, write
from tests.support.json_changes import anything, changed, one_sentence_at_most, places
from tests.support.levels import draws
from tests.support.sim_runs import rows_of

LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
         "intermediate_size": 128}
BY_HAND = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "vocabulary": 100, "ffn": 128,
           "gated": True, "norm": "rms"}


def workload(model, **keys):
    return topology(workload={"model": model, "batch": 1, "framework": "free", "sequence": 16}
                    | keys)


def config(folder, data=LLAMA, name="config.json"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(data if isinstance(data, str) else json.dumps(data))


def test_a_path_means_what_its_keys_mean(tmp_path):
    """The path is taken from the file's folder; the answer and the fingerprint are the same."""
    config(tmp_path / "model")
    by_path = load(write(tmp_path, workload("model/config.json")))
    by_hand = load(write(tmp_path, workload(BY_HAND), "hand.yaml"))
    assert by_path.workload.network == by_hand.workload.network
    assert by_path.fingerprint == by_hand.fingerprint
    (tmp_path / "away").mkdir()
    (tmp_path / "model").rename(tmp_path / "away" / "model")
    with pytest.raises(TopologyError, match="No such file"):
        load(write(tmp_path, workload("model/config.json")))


def test_the_command_trains_a_model_of_ones_own(tmp_path):
    config(tmp_path)
    path = write(tmp_path, workload("config.json"))
    result = CliRunner().invoke(main, [str(path), "--quiet", "--json", "-", "--draws", "0"])
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["scenarios"][0]["images_per_s"] > 0
    parameters = load(path).workload.network.parameters
    assert f"The file's own model has {parameters / 1e9:.3f} billion parameters." in answer["notes"]


@pytest.mark.parametrize(("data", "says"), [
    ({"model_type": "mamba"}, "model_type 'mamba' is not known; allowed: gpt2, gpt_neox"),
    ({"hidden_size": 8}, "has no model_type; allowed: gpt2, "),
    ({"model_type": "llama"}, "needs the field"), ("[]", "holds no mapping"), ("{", "is not JSON"),
    (LLAMA | {"num_attention_heads": 5}, "does not fit as heads: 5 heads do not divide"),
    (LLAMA | {"hidden_size": "wide"}, "does not fit as width")])
def test_a_bad_configuration_is_one_sentence_at_the_key(tmp_path, data, says):
    config(tmp_path, data)
    with pytest.raises(TopologyError, match=says) as caught:
        load(write(tmp_path, workload("config.json")))
    assert caught.value.key == "workload.model"
    assert caught.value.line
    assert "\n" not in str(caught.value)


def test_a_configuration_of_a_wrong_name_has_the_nearest_one(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(TopologyError, match=r"did you mean 'models/config\.json'"):
        load(write(tmp_path, workload("models/confg.json")))


@pytest.mark.parametrize(("model", "keys", "key", "says"), [
    (BY_HAND | {"heads": 3}, {}, "workload.model.heads", "3 heads do not divide a width of 64"),
    (BY_HAND | {"kv_heads": 3}, {}, "workload.model.kv_heads", "3 heads of keys"),
    (BY_HAND | {"vocabulary": 0}, {}, "workload.model", "neither vocabulary nor patches"),
    (BY_HAND | {"ahead": 1, "encoder": 2}, {}, "workload.model.ahead",
     "have no output layer of a decoder"),
    (BY_HAND | {"layer": 2}, {}, "workload.model.layer", "did you mean 'layers'"),
    (BY_HAND | {"experts": {"count": 2, "top_k": 3, "ffn": 8}}, {},
     "workload.model.experts.top_k", "allowed: 1 to 2"),
    (BY_HAND | {"experts": {"count": 8, "groups": 3, "ffn": 8}}, {},
     "workload.model.experts.groups", "3 groups do not divide 8 experts"),
    (BY_HAND | {"experts": {"count": 8, "top_k": 3, "groups": 4, "ffn": 8}}, {},
     "workload.model.experts.top_groups", "3 experts of a token in 1 of 4 groups of 2; allowed: "
     "2 to 4"),
    (BY_HAND, {"sequence": None}, "workload.model", "needs sequence"),
    (BY_HAND | {"positions": 8}, {}, "workload.sequence",
     "8 positions and no more; allowed: no sequence, or a shorter one"),
    ("gpt2", {"sequence": 1025}, "workload.sequence", "1024 positions and no more"),
    ("vgg16", {}, "workload.sequence", "no sequence"),
    (BY_HAND | {"vocabulary": 0, "patches": {"image": 8, "size": 2}}, {}, "workload.sequence",
     "samples of one size; allowed: no sequence$"),
    (3, {}, "workload.model", "a mapping of a transformer's keys"),
    ("vgg", {}, "workload.model", "did you mean 'vgg16'")])
def test_a_mistake_is_named_where_it_stands(tmp_path, model, keys, key, says):
    with pytest.raises(TopologyError, match=says) as caught:
        load(write(tmp_path, workload(model, **keys)))
    assert caught.value.key == key


def test_a_sequence_changes_the_arithmetic_of_a_model_by_name(tmp_path):
    def flops(tokens):
        made = load(write(tmp_path, workload("bert-base", sequence=tokens))).workload.network
        assert made.tokens == tokens
        assert made.parameters == 109_482_240
        return made.forward_flops

    assert 2 * flops(128) < flops(256) < 2.1 * flops(128)  # attention grows with the square


def test_jobs_compute_at_their_own_precision(tmp_path):
    """TF32 has eight times the rate of fp32 on an A100."""
    job = {"model": "gpt2", "batch": 1, "framework": "free"}
    path = write(tmp_path, topology(
        host={"gpus": {"count": 1, "model": "A100", "utilisation": 0.01}},
        workload=job | {"precision": "tf32"},
        jobs=[{"name": "fast", "hosts": ["h-0"]},
              {"name": "slow", "hosts": ["h-1"], "workload": job | {"precision": "fp32"}}]))
    fast, slow = (row["step_ms"] for row in rows_of(path))
    assert slow / fast == pytest.approx(8, rel=0.02)  # but for kernels that memory bounds


@pytest.mark.parametrize(("data", "says"), [
    (LLAMA | {"num_hidden_layers": "2"},
     "num_hidden_layers does not fit as layers: found '2'; allowed: a whole number"),
    (LLAMA | {"model_type": "mistral3", "text_config": 5}, "text_config is no mapping"),
    ({"model_type": "vit", "id2label": 7} | LLAMA | {"model_type": "vit", "image_size": 8,
                                                     "patch_size": 2}, "id2label is no mapping"),
    ('{"a":' * 200_000, "config.json is not JSON: nested too deeply"),
    ('{\n"a" 1}', "config.json:2: is not JSON: Expecting ':' delimiter"),
    ('{"a": ' + "9" * 5000 + "}", "a number has too many digits")])
def test_the_field_at_fault_is_named(tmp_path, data, says):
    config(tmp_path, data)
    with pytest.raises(TopologyError, match=says):
        load(write(tmp_path, workload("config.json")))


@settings(max_examples=draws(300), deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given=st.sampled_from(sorted(CONFIGS)).flatmap(lambda name: st.tuples(
    st.just(CONFIGS[name]), st.sampled_from(places(CONFIGS[name])))), value=anything)
def test_any_value_of_a_configuration_is_a_model_or_one_sentence(tmp_path, given, value):
    made, place = given
    config(tmp_path, changed(made, *place, value=value))
    with one_sentence_at_most(Problem, str(tmp_path)):
        build(read_model(str(tmp_path / "config.json"), SimpleNamespace(context=None)).shape, 16)
