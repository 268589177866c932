"""[`UniqueKeyLoader`]: YAML without keys that are given twice, of which PyYAML takes the last without a word."""

import yaml


class UniqueKeyLoader(yaml.SafeLoader):
    """
    YAML's safe types; a key that occurs twice is an error.

    >>> yaml.load("{weight: 1, name: novels}", UniqueKeyLoader)
    {'weight': 1, 'name': 'novels'}
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = []  # no set: YAML allows keys that cannot be in one, for which there is an error below
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in keys:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            keys.append(key)
        return super().construct_mapping(node, deep)
