"""
How well a bag of words tells the classes of a task whose examples are single texts, such as that of
`examples/configs/quickstart_fine_tune.yaml`: a logistic regression on TF-IDF weights. What a model scores beside it.

    python benchmarks/passage_baselines.py --task python/module_of_passage --test_split_percentage 10
"""

import argparse
from collections import Counter

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from hf_depth import get_task, load_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="python/module_of_passage")
    parser.add_argument("--test_split_percentage", type=float, default=10, help="as for the fine-tuning")
    arguments = parser.parse_args()

    task = get_task(arguments.task)
    splits = load_task(task, options={"test_split_percentage": arguments.test_split_percentage})
    texts = {split: [task.prompt(example) for example in examples] for split, examples in splits.items()}
    labels = {split: task.label_ids(examples) for split, examples in splits.items()}
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    classifier = LogisticRegression(C=10, max_iter=1000)
    classifier.fit(vectorizer.fit_transform(texts["train"]), labels["train"])
    most_frequent = Counter(labels["train"]).most_common(1)[0][0]
    print(f"{'':12}{'examples':>10}{'majority':>10}{'bag of words':>14}")
    for split in ("train", "validation", "test"):
        majority = labels[split].count(most_frequent) / len(labels[split])
        accuracy = classifier.score(vectorizer.transform(texts[split]), labels[split])
        print(f"{split:12}{len(labels[split]):10,}{majority:10.3f}{accuracy:14.3f}")


if __name__ == "__main__":
    main()
