/// What is known of stored tokens from other passes of the same model: the attention that they will get, from
/// a run with a full cache on the same tokens (`future`), and while the prompt is repeated (`repeat`). Const
/// once made; any thread.
#pragma once

#include "engine/base/index.h"

#include <cstdint>
#include <limits>
#include <vector>

namespace keyhole {

/// future of a token after row r: the sum, over the rows after r, of the mean over the query heads of its KV
/// head of the probability on it.
struct FutureTable {
    int first_row = 0;        ///< n_prompt - 1, the first row after which tokens leave
    int n_rows = 0;           ///< rows after which it is known, from first_row on
    int n_columns = 0;        ///< positions, those of the last row included
    int n_kv_heads = 0;       ///< of the whole model
    std::vector<int> tokens;  ///< [n_rows - 1] of the rows after first_row: the text that it holds for
    std::vector<float> sums;  ///< [n_rows, n_kv_heads, n_columns]

    /// Returns 0 for rows and positions that it does not have.
    float at(int kv_head, int row, int position) const {
        const int r = row - first_row;
        if (r < 0 || r >= n_rows || position >= n_columns) return 0;
        return sums[(to_index(r) * to_index(n_kv_heads) + to_index(kv_head)) * to_index(n_columns) +
                    to_index(position)];
    }
    /// Returns whether the row's token is the one that it holds for. Rows after its end have none.
    bool holds_for(int row, int token) const {
        const int i = row - first_row - 1;
        return i < 0 || i >= static_cast<int>(tokens.size()) || tokens[to_index(i)] == token;
    }
    std::size_t bytes() const { return sums.size() * sizeof(float) + tokens.size() * sizeof(int); }
};

/// repeat of a token: the most attention that it gets, of any query head of its KV head and any row, while
/// the model reads the prompt a second time behind itself (KVzip). Const once made; any thread.
struct RepeatTable {
    int n_kv_heads = 0;       ///< of the whole model
    int n_columns = 0;        ///< tokens of the prompt
    std::vector<float> most;  ///< [n_kv_heads, n_columns]

    /// Returns infinity for tokens after the prompt: nothing is known against them.
    float at(int kv_head, int position) const {
        if (position >= n_columns) return std::numeric_limits<float>::infinity();
        return most[to_index(kv_head) * to_index(n_columns) + to_index(position)];
    }
    std::size_t bytes() const { return most.size() * sizeof(float); }
};

}  // namespace keyhole
