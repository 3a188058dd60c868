"""`HashEmbedding`: the same vectors everywhere, as Chroma wants them. Words: in any script, by their stems."""

import subprocess
import sys
from pathlib import Path

import chromadb
import numpy as np
import pytest
from chromadb.utils.embedding_functions import known_embedding_functions
from hypothesis import given, strategies as st

from turnwise.errors import ConfigError
from turnwise.memory.longterm.recall.analyzer import language_of, speaker_words, stems, words
from turnwise.testing.embedding import HashEmbedding, register

GOLDEN = ([180, 284, 209, 270], [0.241, 0.2223, 0.1801, 0.1801])

SENTENCE = "Sarah moved to Graz in May, and adopted two cats."


def similarity(text: str, other_text: str) -> float:
    vectors = HashEmbedding()([text, other_text])
    return float(vectors[0] @ vectors[1])


def test_vectors_are_golden() -> None:
    (vector,) = HashEmbedding()([SENTENCE])
    assert vector.dtype == np.float32
    assert vector.shape == (384,)
    places = np.argsort(-np.abs(vector), kind="stable")[:4].tolist()
    assert places == GOLDEN[0]
    assert np.allclose(vector[places], GOLDEN[1], atol=1e-4)


def test_vectors_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "from turnwise.testing.embedding import HashEmbedding\n"
        f"print(HashEmbedding()([{SENTENCE!r}])[0].tobytes().hex())"
    )
    env = {"PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    process = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert bytes.fromhex(process.stdout) == HashEmbedding()([SENTENCE])[0].tobytes()


@given(st.lists(st.text(max_size=200), max_size=5), st.sampled_from([64, 384, 4096]))
def test_every_text_has_a_vector_of_length_1_in_any_batch(texts: list[str], dimensions: int) -> None:
    function = HashEmbedding(dimensions)
    together = function(texts)
    assert [vector.shape for vector in together] == [(dimensions,)] * len(texts)
    for text, vector in zip(texts, together, strict=True):
        assert abs(float(vector @ vector) - 1) < 1e-5
        assert np.array_equal(vector, function([text])[0])


def test_texts_that_share_words_or_forms_are_more_similar() -> None:
    far = similarity("the cat sat on the mat", "quarterly revenue grew")
    assert similarity("He goes hiking", "he goes on hikes") > far + 0.3
    assert similarity("the accommodation", "an acommodation") > far + 0.2
    assert similarity("Das Wörterbuch", "ein Worterbuch") > far + 0.4
    assert similarity("東京タワーに行った", "東京タワー") > far + 0.4


@pytest.mark.parametrize("dimensions", [0, 63, 4097, 2.5, "384"])
def test_dimensions_out_of_range_are_refused(dimensions: int) -> None:
    with pytest.raises(ConfigError):
        HashEmbedding(dimensions)


def test_a_persisted_collection_opens_again_with_it(tmp_path: Path) -> None:
    register()
    client = chromadb.PersistentClient(str(tmp_path))
    collection = client.create_collection("texts", embedding_function=HashEmbedding(128))  # type: ignore[arg-type]
    collection.add(ids=["1", "2"], documents=["cats and dogs", "stocks and bonds"])
    client.close()  # type: ignore[attr-defined]
    reopened = chromadb.PersistentClient(str(tmp_path)).get_collection("texts")
    assert reopened.query(query_texts=["dog"], n_results=1)["ids"] == [["1"]]
    assert reopened.configuration["embedding_function"].get_config() == {"dimensions": 128}  # type: ignore[union-attr]
    assert HashEmbedding.name() in known_embedding_functions
    with pytest.raises(ConfigError):
        HashEmbedding(128).validate_config_update({"dimensions": 128}, {"dimensions": 256})


# Words


@given(st.text())
def test_words_are_short_and_have_only_letters_and_digits(text: str) -> None:
    for word in words(text):
        assert 0 < len(word) <= 64
        assert not set(word) & set(" \t\n\"'*()^:-_.,\0")


def test_words_in_many_scripts() -> None:
    assert words("Café DÉJÀ e\u0301 \ufb01ne ß") == ["cafe", "deja", "e", "fine", "ss"]
    assert words("abc文字 हिन्दी") == ["abc", "文", "字", "文字", "हिन्दी"]
    assert words("Привет, мир") == ["привет", "мир"]
    assert (speaker_words("Sarah Jones: hello"), speaker_words("see http://x.y"), speaker_words("")) == (
        ["sarah", "jones"],
        [],
        [],
    )


@pytest.mark.parametrize(
    ("word", "other_word"),
    [
        ("Where do I live?", "The user lives in Paris"),
        ("She leaves in May", "Leaving early is fine"),
        ("Welche Allergien habe ich und wie ist das?", "Die Allergie ist nicht neu"),
        ("Fahrrad?", "Sie hat zwei Fahrräder und das ist gut"),
        ("Мои кошки", "Это кошка"),
        ("Los gatos de mi casa", "Mi gato no es de la casa"),
    ],
)
def test_inflected_words_share_a_stem(word: str, other_word: str) -> None:
    def long_stems(text: str) -> set[str]:
        return {stem for stems_of_word in stems(words(text)) for stem in stems_of_word if len(stem) > 3}

    assert long_stems(word) & long_stems(other_word)


def test_the_language_of_a_text_is_that_of_its_commonest_words_or_its_script() -> None:
    texts = {
        "english": "Where is the cat?",
        "german": "Wo ist die Katze und was hat sie?",
        "french": "Le chat est dans la maison avec moi",
        "russian": "Где моя кошка?",
    }
    assert {language: language_of(words(text)) for language, text in texts.items()} == {
        language: language for language in texts
    }
    assert [language_of(words(text)) for text in ("", "walrus", "🦀")] == ["english"] * 3


def test_an_article_that_other_languages_have_too_does_not_decide() -> None:
    english = "Is Ann a vegetarian?", "Does she work full-time as a nurse?", "Write a limerick about a lighthouse."
    assert [language_of(words(text)) for text in english] == ["english"] * 3
    assert language_of(words("Hol van a kutya?")) == "hungarian"
    assert language_of(words("Fui a Lisboa com a Maria")) == "portuguese"
