"""BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, MPNet, ELECTRA, ALBERT, GTE, NomicBERT, Jina v3, and models of the same architectures, such as MiniLM."""
