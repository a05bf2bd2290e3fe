"""The page of one head, and what `headwise analyze` was asked to look for."""

import base64
import hashlib
import html
import json
import re

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel

from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.view import View, look_at, parse_head
from headwise.prune.cli import main
from headwise.prune.cli.analyze import _bytes
from headwise.prune.view_page import view_page
from tests.word_tokenizers import of_words

WORDS = ["?", "the", "dog", "<b>", "saw", "cat", ".", "him", "self"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(WORDS), n_embd=16, n_layer=2, n_head=4, n_positions=128)
    GPT2LMHeadModel(config).save_pretrained(folder)
    of_words(WORDS, split=pre_tokenizers.WhitespaceSplit(), unk_token="?", eos_token="?").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def opened(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def texts(tmp_path):
    draw = np.random.default_rng(0)
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(" ".join(draw.choice(WORDS[1:], size=12)) for _ in range(20)))
    return file


def test_the_map_is_the_models(opened):
    model, tokenizer = opened
    seen = look_at(model, tokenizer, "the dog saw <b> .", "1.2")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        wanted = model(**tokenizer("the dog saw <b> .", return_tensors="pt"), output_attentions=True).attentions[1][
            0, 2
        ]
    np.testing.assert_allclose(seen.map, wanted, atol=1e-6)
    assert seen.words == ("the", "dog", "saw", "<b>", ".")
    assert seen.glued == (False,) * 5
    assert seen.roles["previous"][1] == pytest.approx(np.mean([1 / 2, 1 / 3, 1 / 4, 1 / 5]))
    assert not seen.cut


@pytest.mark.parametrize("label", ["12", "1.9", "9.1", "1.x", ".", "1.-1"])
def test_a_head_that_is_not_there(opened, label):
    from headwise.analysis.sites import find_sites

    with pytest.raises(BadInput):
        parse_head(label, find_sites(opened[0]))


def test_the_page_holds_the_map_and_escapes_the_text(opened):
    model, tokenizer = opened
    page = view_page(look_at(model, tokenizer, "the dog saw <b> .", "0.1"), "</title><script>")
    assert "<b>" not in page
    assert page.count("<script") == 2
    held = json.loads(re.search(r'id="map">(.*?)</script>', page, re.DOTALL)[1])
    assert np.allclose(np.sum(held, axis=1), 1, atol=3e-3)
    assert "on this text alone" in page
    # Roles that the text has nothing for are named once, and the largest share over chance stands first.
    assert re.search(r"Not applicable here: [^<]*\bnumber\b", page)
    over = [float(cell) for cell in re.findall(r'<td class="n">([+-]\d\.\d+)</td>', page)]
    assert len(over) > 3
    assert over == sorted(over, reverse=True)


def test_the_page_runs_its_own_script_alone_and_shows_control_characters():
    page = view_page(View("0", 1, ("a\x1b[31m", "\u202eb"), np.eye(2), {}, {}, False), "m\x07")
    assert page.startswith("<!doctype html>")
    assert not {"\x1b", "\u202e", "\x07"} & set(page)
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    named = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{named}'" in html.unescape(page)


def test_words_stand_as_in_the_text_and_the_most_telling_one_is_shown(folder):
    view = View("0", 1, ("[CLS]", "Ann", "'", "s", "dog"), np.eye(5), {}, {}, False, (False, False, True, True, False))
    view.map[3] = [0.5, 0, 0, 0.1, 0.4]
    view.map[2] = [0.9, 0.1, 0, 0, 0]
    page = view_page(view, "m")
    shown = re.search(r'id="words">(.*?)</p>', page, re.DOTALL)[1]
    assert html.unescape(re.sub("<[^>]*>", "", shown)).strip() == "[CLS] Ann's dog"
    assert "choose(3)" in page


def test_a_page_with_a_run_tells_what_was_tested(folder):
    view = View("0", 1, ("a", "b"), np.eye(2), {}, {}, False)
    parts = {"score": 0.5, "chance": 0.1, "excess": 0.4, "low": 0.31, "high": 0.52, "assigned": True}
    arrays = {f"roles/bond/{part}": np.array([0, value]) for part, value in parts.items()}
    arrays |= {"statistics/entropy": np.array([1.0, 1e-9]), "roles/primary": np.array([-1, 0])}
    says = "Causal: without 0.1 the loss rises."
    tested = {"bond": {"heads": ["0.1"], "says": says}, "self": {"heads": ["0.0"], "says": "of head 0.0"}}
    page = view_page(
        view, "m", Evidence([("0", 0), ("0", 1)], arrays, {"interventions": tested, "texts": {"count": 7}})
    )
    for words in ("Its roles: bond.", says, "Measured on 7 texts", "+0.310 to +0.520", "chooses the linked word"):
        assert words in page
    assert "of head 0.0" not in page
    assert re.search(r"entropy of its attention, in nats</td><td class=\"n\">0</td>", page)
    other = Evidence([("0", 1)], {"statistics/entropy": np.array([1.0])})
    assert "It plays no role that was looked for." in view_page(view, "m", other)


def test_analyze_looks_for_what_it_is_told_and_view_reads_it(folder, texts, tmp_path, capsys):
    gold = tmp_path / "gold.jsonl"
    rows = [
        {"text": f"the dog saw the cat . {'saw ' * k}", "links": [[[4, 7], [8, 11]]], "relation": "acts"}
        for k in range(40)
    ]
    gold.write_text("\n".join(json.dumps(row) for row in rows))
    run = tmp_path / "run"
    arguments = ["analyze", folder, "--texts", texts, "--roles", "previous,induction",
                 "--similarity", "cosine,replaceability", "--annotations", f"jsonl:{gold}", "--intervene",
                 "--memory-budget", "1KB", "--effect", "0.2", "--output-dir", run, "-q"]  # fmt: skip
    assert main([str(argument) for argument in arguments]) == 0, capsys.readouterr().err
    evidence = Evidence.load(run / "evidence")
    names = set(evidence.arrays)
    assert evidence.facts["settings"]["effect"] == 0.2
    assert {"roles/previous/p", "roles/induction/q", "roles/acts:back/score", "statistics/replaceability"} <= names
    assert not {"similarity/pearson", "roles/self/score"} & names
    assert set(evidence.facts["interventions"]) == {"previous", "induction"}
    assert evidence.facts["tiled_texts"] == 20
    page = tmp_path / "page.html"
    looking = ["view", folder, "--text", "the dog saw", "--head", "1.1", "--run", run, "-o", page]
    assert main([str(argument) for argument in looking]) == 0
    assert "induction" in page.read_text(encoding="utf-8")
    assert main([str(argument) for argument in looking]) == 2
    assert "exists" in capsys.readouterr().err
    told = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps(told | {"model": told["model"] | {"hash": "0123"}}))
    assert main([str(argument) for argument in looking] + ["--overwrite"]) == 2
    assert "with the weights 0123, those of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--roles", "sink"], "expected some of previous"),
        (["--similarity", "spearman"], "expected some of pearson"),
        (["--annotations", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--pairs", "x.jsonl"], "--pairs needs --intervene"),
        (["--memory-budget", "lots"], "expected a size such as"),
        (["--null", "luck"], "expected some of analytic, permutation, random-copy"),
        (["--door", "back"], "expected some of auto, eager, tiles"),
    ],
)
def test_what_cannot_be_looked_for_is_refused(folder, texts, tmp_path, capsys, arguments, says):
    code = main(["analyze", str(folder), "--texts", str(texts), "--output-dir", str(tmp_path / "run"), *arguments])
    assert code == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("size", "wanted"), [("512MB", 512 * 10**6), ("1.5 gib", 1.5 * 2**30), ("2G", 2 * 10**9), ("7", 7)]
)
def test_sizes(size, wanted):
    assert _bytes(size) == wanted
