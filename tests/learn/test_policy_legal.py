"""Whatever is written under the space's own conditions is legal, and everything legal can be written."""

from __future__ import annotations

import random

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from made_up_tables import DEVICE, rows_of

from kernelwright.families import families_for
from kernelwright.families.family import DeviceFacts
from kernelwright.families.gemm_sm90.family import _menu
from kernelwright.learn.policy_legal import Legal, Listed, random_designs
from kernelwright.learn.policy_model import Policy, Size
from kernelwright.learn.policy_sample import sample
from kernelwright.learn.policy_vocabulary import Vocabulary, spaces_of
from kernelwright.problems import resolve
from kernelwright.records import Workload

H200 = DeviceFacts(target="cuda:sm_90", name="NVIDIA H200", sms=132, smem_per_block=227 << 10, l2_bytes=60 << 20)

axis = st.one_of(st.integers(1, 2048).map(lambda n: 8 * n), st.integers(3, 14).map(lambda n: 2**n))
quick = settings(max_examples=12, deadline=None, phases=[p for p in Phase if p is not Phase.shrink])  # shrinking takes minutes
products = st.builds(
    lambda m, n, k, dtype, layout: Workload(problem="gemm", axes={"M": m, "N": n, "K": k}, dtype=dtype, layout=layout),
    axis, axis, axis, st.sampled_from(("fp16", "bf16")), st.sampled_from(("nn", "nt", "tn", "tt")),
)  # fmt: skip


@quick
@given(w=products, seed=st.integers(0, 2**30))
def test_an_untrained_model_writes_complete_legal_configs_for_any_product(w, seed):
    families = [f for f in families_for(w, H200)[0] if f.name.startswith("gemm_sm90")]
    vocabulary = Vocabulary(spaces_of(families, w, H200))
    torch.manual_seed(seed)
    policy = Policy(vocabulary, Size(32, 1, 1))
    prompt = vocabulary.prompt(w, H200)
    (found,) = sample(policy, [prompt], [Legal(vocabulary, families, w, H200)], 16, torch.Generator().manual_seed(seed))
    assert found, "a model that knows nothing comes to many dead ends, but not to these alone"
    by_name = {f.name: f for f in families}
    for s in found:
        family, config = vocabulary.config(s.words)
        assert by_name[family].illegal(config, w, H200) is None
        assert vocabulary.design(family, config) == list(s.words)
        assert all(word in allowed for word, allowed in zip(s.words, s.allowed, strict=True))


@quick
@given(w=products, seed=st.integers(0, 2**30))
def test_no_legal_config_is_refused_on_the_way(w, seed):
    """Refusing a choice early is sound: of legal configs every beginning is allowed."""
    families = families_for(w, H200)[0]
    vocabulary = Vocabulary(spaces_of(families, w, H200))
    legal, rng = Legal(vocabulary, families, w, H200), random.Random(seed)
    for family in families:
        scheme = getattr(family, "scheme", None)
        configs = [*family.seeds(w, H200), *(rng.sample(_menu(scheme, w.layout, H200)[0], 60) if scheme else ())]
        for config in configs:
            if family.illegal(config, w, H200) is None:
                design = vocabulary.design(family.name, config)
                assert design is not None
                assert all(design[i] in legal.allowed(tuple(design[:i])) for i in range(len(design)))


def test_the_scripted_space_is_written_whole():
    w = resolve("gemm:64x256x96:fp16:nn")
    families = families_for(w, DEVICE)[0]
    vocabulary = Vocabulary(spaces_of(families, w, DEVICE))
    written = set(random_designs(Legal(vocabulary, families, w, DEVICE), vocabulary, random.Random(0).choice, 2000))
    assert len(written) == len(rows_of(w.name)) == 68


def test_what_is_excluded_is_not_written_again_until_nothing_is_left():
    w = resolve("gemm:64x256x96:fp16:nn")
    families = families_for(w, DEVICE)[0]
    vocabulary = Vocabulary(spaces_of(families, w, DEVICE))
    legal, rng, written = Legal(vocabulary, families, w, DEVICE), random.Random(1), set()
    while found := next(random_designs(legal, vocabulary, rng.choice, 50), None):
        assert found not in written
        written.add(found)
        legal.exclude(found)
        legal.exclude(found)
    assert len(written) == 68 and not legal.allowed(())
    policy = Policy(vocabulary, Size(32, 1, 1))
    assert sample(policy, [vocabulary.prompt(w, DEVICE)], [legal], 4, torch.Generator()) == [[]]


def test_a_list_allows_its_designs_alone():
    listed = Listed([(1, 2, 3), (1, 4, 5), (6, 7)])
    assert listed.allowed(()) == [1, 6] and listed.allowed((1,)) == [2, 4] and listed.allowed((1, 2)) == [3]
    assert not listed.allowed((1, 2, 3)) and not listed.allowed((9,))
