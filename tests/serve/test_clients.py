"""Clients of OpenAI's interface, unchanged: the `openai` package, LangChain's and LlamaIndex's embedding classes. They and what they
need are 300 MB, so that they are not installed with the other tests: `make clients` fetches them and runs this file."""

import numpy as np
import pytest

pytestmark = pytest.mark.stress
TEXTS = ["the cat sat on the mat", "a dog", "it ran away."]


def test_openai(start, encoder) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=start().url, api_key="any") as client:
        expected = encoder.encode(TEXTS)
        for encoding in ("float", "base64"):
            answer = client.embeddings.create(model="tiny", input=TEXTS, encoding_format=encoding)
            assert answer.usage.total_tokens == encoder.report.tokens.sum()
            assert [row.index for row in answer.data] == [0, 1, 2]
            if encoding == "float":
                assert np.float32([row.embedding for row in answer.data]).tobytes() == expected.tobytes()
        answer = client.embeddings.create(model="tiny", input=TEXTS, dimensions=5)  # base64, decoded by the client
        assert np.float32([row.embedding for row in answer.data]).tobytes() == expected[:, :5].tobytes()
        assert [model.id for model in client.models.list()] == ["tiny"]
        with pytest.raises(openai.NotFoundError, match="there is no model 'ada' here"):
            client.embeddings.create(model="ada", input="a cat")
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            client.embeddings.create(model="tiny", input="")
        assert (caught.value.param, caught.value.type) == ("input", "invalid_request_error")


def test_langchain(start, encoder) -> None:
    client = pytest.importorskip("langchain_openai").OpenAIEmbeddings
    model = client(model="tiny", base_url=start().url, api_key="any", check_embedding_ctx_length=False)
    assert np.float32(model.embed_documents(TEXTS)).tobytes() == encoder.encode(TEXTS).tobytes()
    assert np.float32(model.embed_query(TEXTS[0])).tobytes() == encoder.encode(TEXTS[:1]).tobytes()


def test_llama_index(start, encoder) -> None:
    client = pytest.importorskip("llama_index.embeddings.openai").OpenAIEmbedding
    model = client(model_name="tiny", api_base=start().url, api_key="any")
    assert np.float32(model.get_text_embedding_batch(TEXTS)).tobytes() == encoder.encode(TEXTS).tobytes()
    assert np.float32(model.get_query_embedding(TEXTS[0])).tobytes() == encoder.encode(TEXTS[:1]).tobytes()
