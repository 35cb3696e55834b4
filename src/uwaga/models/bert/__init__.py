"""BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, MPNet, ELECTRA, ALBERT, and models of the same architectures, such as MiniLM."""
