"""Models in files: directories as Hugging Face's transformers writes them.

load_save                   load and save a model; the families
directories                 a path, a bundled model or an id of the hub as a directory, and its fingerprint
config_json, sentence_files the settings of a model, and of sentence-transformers
weight_files, torch_files   finding and opening weights; files of torch.save
tables                      weights by their names in files and in models, and their comparison
"""
