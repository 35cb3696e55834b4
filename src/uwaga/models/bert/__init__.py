"""BERT and its relatives: RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, and what was distilled from them, as MiniLM."""
