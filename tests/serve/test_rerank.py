"""/v1/rerank and its other paths: scores, forms and errors."""

import asyncio
        )
        cut = (await client.post("/v1/rerank", {"query": QUERY, "documents": [long], "truncation": True})).json[
            "results"
        ]
        assert cut[0]["relevance_score"] == reranker.rank(QUERY, [long], overflow="truncate").scores[0]
        empty = await client.post("/v1/rerank", {"query": QUERY, "documents": ["a", " "]})
        assert (empty.status, empty.json["message"]) == (422, "documents[1] is empty: it has no tokens")

    serving(test, ranker=with_both)


def test_a_score_that_is_not_finite_is_an_error_of_its_own_request(serving, encoder) -> None:
    """JSON has neither NaN nor Infinity."""
    encoder.model.embeddings.token_embedding.weight.data[DOG] = float("inf")
    said = "has a {} that is NaN or infinite; leave it out, or start the server with --dtype float32 or another model"

    async def test(client) -> None:
        for form in ({"documents": PASSAGES}, {"documents": ["a cat", "the dog"]}):
            answer = await client.post("/v1/rerank", {"query": QUERY} | form)
            place = form["documents"].index(next(text for text in form["documents"] if "dog" in text))
            message = f"documents[{place}] {said.format('vector')}"
            assert (answer.status, answer.json) == (422, {"message": message, "detail": message})
        answer = await client.post("/rerank", {"query": "the dog", "texts": ["a cat"]})
        assert (answer.status, answer.json["error"]) == (422, f"query {said.format('vector')}")
        whole, other = await asyncio.gather(
            client.post("/rerank", {"query": QUERY, "texts": PASSAGES}),
            client.post("/rerank", {"query": QUERY, "texts": PASSAGES[1:]}),
        )
        assert (whole.status, other.status) == (422, 200)

    serving(test)


@pytest.mark.parametrize("raw", [False, True])
def test_a_score_of_a_cross_encoder_that_is_not_finite_is_an_error(serving, write_reranker, raw) -> None:
    reranker = Reranker.load(write_reranker())
    reranker.model.embeddings.token_embedding.weight.data[DOG] = float("inf")

    async def test(client) -> None:
        asked = {"query": QUERY, "texts": ["the cat", "it", "a dog"], "raw_scores": raw}
        answer = await client.post("/rerank", asked)
        assert (answer.status, answer.json["error"]) == (
            422,
            "documents[2] has a score that is NaN or infinite; leave it out, or start the server with --dtype float32 or another model",
        )
        assert (await client.post("/rerank", asked | {"texts": ["the cat"]})).status == 200

    serving(test, ranker=lambda model: CrossEncoderRanker(model, reranker))
