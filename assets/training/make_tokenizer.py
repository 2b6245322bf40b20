"""Trains the byte-level BPE tokenizer on the training text and writes tokenizer.json."""
import argparse
import json
import os

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from text import EOT, TRAIN_FILES, read_text


def make(texts, vocab):
    # Each digit is its own token, so the model must copy each digit of a number separately.
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[EOT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator(texts, trainer)
    eot = tok.token_to_id(EOT)
    tok.post_processor = processors.TemplateProcessing(
        single=f"{EOT} $A", pair=f"{EOT} $A {EOT} $B", special_tokens=[(EOT, eot)])
    return tok


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--data", required=True, help="folder with the .txt.xz files")
    args.add_argument("--out", required=True, help="tokenizer.json to write")
    args.add_argument("--vocab", type=int, default=2048)
    args.add_argument("--classics-share", type=float, default=0.1,
                      help="part of each classics file that is read")
    a = args.parse_args()

    def paragraphs():
        for name in TRAIN_FILES:
            text = read_text(a.data, name)
            if "classics" in name:
                text = text[: int(len(text) * a.classics_share)]
            yield from (p for p in text.split("\n\n") if p)

    tok = make((p.replace(EOT, "") for p in paragraphs()), a.vocab)
    tok.save(a.out)
    print(json.dumps({"vocab": tok.get_vocab_size(), "out": os.path.basename(a.out)}))


if __name__ == "__main__":
    main()
