"""Checkpoints of a training: folders that are whole or not there, and the names of the last and the best one.

out/step-000123/    config.json, model.safetensors, tokenizer.json: what `uwaga.models.load` and transformers read
                    optimizer.safetensors, training.json, config.toml: what a training goes on from
out/last, out/best  the names of two such folders
out/metrics.jsonl   see uwaga.train.metrics.journal
"""
