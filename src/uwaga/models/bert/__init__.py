"""BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, and models of the same architectures, such as MiniLM."""
