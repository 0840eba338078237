"""The layout of a model's states in pages: every element has one place at one rank."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from harp.angelptm.page_plan import DEVICE, Capacities, first_placement
from harp.angelptm.pages import ALIGN, WIDE, Layout, whole_page
from tests.support.levels import draws


@st.composite
def layouts(draw):
    """Give the same model's layouts at all ranks."""
    ranks = draw(st.integers(1, 4))
    sizes = tuple(draw(st.lists(st.integers(0, 7000), min_size=1, max_size=4)))
    page = whole_page(draw(st.sampled_from([8192, 16384])), ranks)
    width = draw(st.sampled_from([2, WIDE]))
    return [Layout(sizes, width, page, ranks, rank) for rank in range(ranks)]


@given(layouts())
def test_parameters_lie_one_after_another_at_whole_lines(each):
    layout = each[0]
    for (begin, after), size in zip(pairwise(layout.begins), layout.sizes, strict=True):
        assert begin % ALIGN == 0
        assert begin + size <= after < begin + size + ALIGN


@given(layouts())
def test_the_parts_of_a_parameter_cover_its_bytes_in_order(each):
    layout = each[0]
    for number, size in enumerate(layout.sizes):
        for gradient in (False, True):
            at = 0
            for page, place, begin, end in layout.parts_of(number, gradient=gradient):
                assert begin == at
                assert page * layout.page_bytes + place == layout.offset(
                    number, gradient=gradient) + begin
                assert place + end - begin <= layout.page_bytes
                at = end
            assert at == size * layout.element_bytes


@settings(max_examples=draws(40))
@given(layouts())
def test_every_element_is_owned_by_the_rank_of_its_part_of_the_page(each):
    layout = each[0]
    in_page = layout.page_bytes // layout.element_bytes
    for number, size in enumerate(layout.sizes):
        found = {}
        for own in each:
            for begin, end, chunk, first in own.ranges(number):
                assert begin // own.chunk == (end - 1) // own.chunk == chunk
                assert chunk in own.chunks_of(number)
                for step in range(end - begin):
                    assert first + step not in found
                    found[first + step] = own.rank, begin + step
        assert sorted(found) == list(range(size))
        for element, (rank, place) in list(found.items())[::97]:
            page, at = divmod(layout.begins[number] + element, in_page)
            assert rank == at // layout.part
            assert place == page * layout.part + at % layout.part


@given(layouts())
def test_an_update_of_a_chunk_shares_no_page_of_states_with_another(each):
    layout = each[0]
    states = [page for chunk in range(layout.chunks) for page in layout.states_of(chunk)]
    assert len(set(states)) == len(states)
    for chunk in range(layout.chunks):
        pages = layout.pages_to_update(chunk)
        assert len(pages) == 2 + layout.states
        assert all(layout.apart <= page < layout.pages for page in pages)


@given(layouts(), st.integers(0, 12))
def test_spare_room_of_the_device_has_all_states_of_some_chunks(each, spare):
    """So the device can update these; half of all chunks' states would serve none."""
    layout = each[0]
    room = min(2 * layout.kept + spare, layout.pages - layout.apart)
    placement = first_placement(layout.pages, Capacities(room, layout.pages + 2), layout.apart)
    whole = [chunk for chunk in range(layout.chunks)
             if all(placement[page][0] == DEVICE for page in layout.states_of(chunk))]
    assert whole == list(range(min(spare // layout.states, layout.chunks)))


@given(layouts())
def test_a_page_of_the_window_has_its_own_part_where_the_chunks_of_it_say(each):
    layout = each[0]
    for page in range(layout.shown):
        source, at = layout.source_of(page)
        assert at + layout.part * layout.element_bytes <= layout.page_bytes
        first = ((source - layout.apart) * layout.page_bytes + at) // layout.element_bytes
        assert first == page * layout.part
        chunks = range(first // layout.chunk, -(-(first + layout.part) // layout.chunk))
        assert all(page in layout.shown_of(chunk) for chunk in chunks if chunk < layout.chunks)


@given(st.integers(1, 1 << 24), st.integers(1, 100))
def test_a_whole_page_is_the_least_that_ranks_can_share_in_lines(page_bytes, ranks):
    found = whole_page(page_bytes, ranks)
    assert found >= page_bytes
    assert found % 8192 == 0
    assert found % ranks == 0
    assert found // ranks % (WIDE * ALIGN) == 0
    smaller = range(found - 8192, page_bytes - 1, -8192)
    assert not any(size % (ranks * WIDE * ALIGN) == 0 for size in smaller)
