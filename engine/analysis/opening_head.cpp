#include "engine/analysis/opening_head.h"

#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"

#include <algorithm>

namespace keyhole {

std::optional<HeadPlace> opening_head(const RunHistory& history, int lane,
                                      const std::optional<TokenSpan>& watched) {
    const int row = history.n_prompt() - 1;
    const KvLayout& layout = history.layout(lane);
    struct Best {
        float value = 0;
        std::optional<HeadPlace> head;
        void offer(float other, HeadPlace place) {
            if (other > value) value = other, head = place;
        }
    } on_watched, on_evicted;
    attention_values_of_all(history, 0, row, [&](int layer, int head, std::span<const float> values) {
        const int kv_head = layout.kv_head_from_head(layer, head);
        float at_watched = 0, at_evicted = 0;
        for (int p = 0; p <= row; ++p) {
            const float value = values[to_index(p)];
            if (!(value > 0)) continue;  // not attended, or not finite
            if (watched && watched->holds(p)) at_watched += value;
            if (!history.stored(lane, kv_head, p, row)) at_evicted = std::max(at_evicted, value);
        }
        on_watched.offer(at_watched, {layer, head});
        on_evicted.offer(at_evicted, {layer, head});
    });
    return on_watched.head ? on_watched.head : on_evicted.head;
}

}  // namespace keyhole
