/// What each quantity of a formula is: one table, which the CPU, the kernels and their host twins read. Pure,
/// for host and device. Any thread. Knows neither caches nor models.
#pragma once

#include "engine/policy/formula.h"

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace keyhole {

/// What a formula may name of a stored token by its place: what all tokens of a unit, or of a row of a query
/// head, have in common, and what at() adds for one of them.
struct PlaceFacts {
    std::int32_t row = 0, n_prompt = 0;
    std::int32_t count = 0;   ///< stored tokens, the row's own included
    std::int32_t budget = 0;  ///< effective
    std::int32_t layer = 0, head = 0, kv_head = 0, window = 0;
    float alpha = 1, tau = 1, gain = 1, mix = 0;
    float sinkmass = 0;  ///< what a learned sink took of the row; models that have one run on the CPU alone
    std::int32_t decode_step = 0, age = 0, position = 0, slot = 0, in_prompt = 0;

    /// Returns the facts of the token at a position, the slot-th of its unit.
    KH_FN PlaceFacts at(std::int32_t token_position, std::int32_t token_slot) const {
        PlaceFacts out = *this;
        out.decode_step = row < n_prompt ? 0 : row - n_prompt + 1;
        out.age = row - token_position;
        out.position = token_position;
        out.slot = token_slot;
        out.in_prompt = token_position < n_prompt ? 1 : 0;
        return out;
    }
};

/// A token of a row of a query head.
struct RowToken {
    float s, p, logit, ptau;
    std::int32_t position, slot;
    float knorm = 0, vnorm = 0, wvnorm = 0;  ///< where the formula names them
};

/// Who knows a quantity.
enum class KnownBy : std::uint8_t {
    place,  ///< PlaceFacts
    row,    ///< a row of a query head alone: PlaceFacts or RowToken
    score,  ///< a row, as the head's own; a selection, pooled over query heads
    unit,   ///< a selection, of a unit's token
    head,   ///< a selection, of a token of each KV head, pooled over the unit; with of_row a row as well
};

using WholeFact = std::int32_t PlaceFacts::*;
using NumberFact = float PlaceFacts::*;
using RowNumber = float RowToken::*;

/// Where a quantity's number is; null: it is computed. What of each KV head's tokens it is computed from.
struct QuantityRow {
    Quantity quantity;
    KnownBy known_by;
    WholeFact whole = nullptr;
    NumberFact number = nullptr;
    RowNumber of_row = nullptr;
    bool reads_keys = false, reads_values = false, reads_scores = false;
};

inline constexpr QuantityRow kQuantityTable[] = {
    {.quantity = Quantity::row, .known_by = KnownBy::place, .whole = &PlaceFacts::row},
    {.quantity = Quantity::t, .known_by = KnownBy::place, .whole = &PlaceFacts::decode_step},
    {.quantity = Quantity::n, .known_by = KnownBy::place, .whole = &PlaceFacts::n_prompt},
    {.quantity = Quantity::count, .known_by = KnownBy::place, .whole = &PlaceFacts::count},
    {.quantity = Quantity::budget, .known_by = KnownBy::place, .whole = &PlaceFacts::budget},
    {.quantity = Quantity::layer, .known_by = KnownBy::place, .whole = &PlaceFacts::layer},
    {.quantity = Quantity::kvhead, .known_by = KnownBy::place, .whole = &PlaceFacts::kv_head},
    {.quantity = Quantity::alpha, .known_by = KnownBy::place, .number = &PlaceFacts::alpha},
    {.quantity = Quantity::tau, .known_by = KnownBy::place, .number = &PlaceFacts::tau},
    {.quantity = Quantity::gain, .known_by = KnownBy::place, .number = &PlaceFacts::gain},
    {.quantity = Quantity::mix, .known_by = KnownBy::place, .number = &PlaceFacts::mix},
    {.quantity = Quantity::window, .known_by = KnownBy::place, .whole = &PlaceFacts::window},
    {.quantity = Quantity::head, .known_by = KnownBy::row, .whole = &PlaceFacts::head},
    {.quantity = Quantity::sinkmass, .known_by = KnownBy::row, .number = &PlaceFacts::sinkmass},
    {.quantity = Quantity::age, .known_by = KnownBy::place, .whole = &PlaceFacts::age},
    {.quantity = Quantity::position, .known_by = KnownBy::place, .whole = &PlaceFacts::position},
    {.quantity = Quantity::slot, .known_by = KnownBy::place, .whole = &PlaceFacts::slot},
    {.quantity = Quantity::prompt, .known_by = KnownBy::place, .whole = &PlaceFacts::in_prompt},
    {.quantity = Quantity::s, .known_by = KnownBy::score, .of_row = &RowToken::s},
    {.quantity = Quantity::p, .known_by = KnownBy::row, .of_row = &RowToken::p},
    {.quantity = Quantity::logit, .known_by = KnownBy::row, .of_row = &RowToken::logit},
    {.quantity = Quantity::ptau, .known_by = KnownBy::row, .of_row = &RowToken::ptau},
    {.quantity = Quantity::knorm, .known_by = KnownBy::head, .of_row = &RowToken::knorm, .reads_keys = true},
    {.quantity = Quantity::vnorm,
     .known_by = KnownBy::head,
     .of_row = &RowToken::vnorm,
     .reads_values = true},
    {.quantity = Quantity::wvnorm,
     .known_by = KnownBy::head,
     .of_row = &RowToken::wvnorm,
     .reads_values = true},
    {.quantity = Quantity::keydiff, .known_by = KnownBy::head, .reads_keys = true},
    {.quantity = Quantity::redundancy, .known_by = KnownBy::head, .reads_keys = true},
    {.quantity = Quantity::win, .known_by = KnownBy::unit},
    {.quantity = Quantity::lag, .known_by = KnownBy::head, .reads_keys = true, .reads_values = true},
    {.quantity = Quantity::caote, .known_by = KnownBy::head, .reads_values = true, .reads_scores = true},
    {.quantity = Quantity::repeat, .known_by = KnownBy::head},
    {.quantity = Quantity::expected, .known_by = KnownBy::head, .reads_keys = true},
    {.quantity = Quantity::tri, .known_by = KnownBy::head, .reads_keys = true},
    {.quantity = Quantity::future, .known_by = KnownBy::head},
    {.quantity = Quantity::u, .known_by = KnownBy::unit},
};

/// Returns whether each quantity has one row, at its place, and a number exactly where its kind has one.
constexpr bool quantity_table_is_complete() {
    if (std::size(kQuantityTable) != std::size_t{kQuantities}) return false;
    for (int q = 0; q < kQuantities; ++q) {
        const QuantityRow& row = kQuantityTable[q];
        const int n_numbers = (row.whole != nullptr ? 1 : 0) + (row.number != nullptr ? 1 : 0) +
                              (row.of_row != nullptr ? 1 : 0);
        const bool is_computed = row.known_by == KnownBy::unit || row.known_by == KnownBy::head;
        const int n_of_place = row.of_row != nullptr ? 0 : n_numbers;
        if (row.quantity != static_cast<Quantity>(q)) return false;
        if (is_computed ? n_of_place != 0 : n_numbers != 1) return false;
        if (row.known_by == KnownBy::place && row.of_row != nullptr) return false;
    }
    return true;
}
static_assert(quantity_table_is_complete(), "a row of kQuantityTable is missing, misplaced or has no number");

constexpr const QuantityRow& row_of(Quantity q) {
    return kQuantityTable[static_cast<int>(q)];
}

/// Writes the number of a quantity that the place tells, and where there is a token of a row, the row. facts:
/// of at(). Returns whether there is one. A device reads no table of the host, so the rows are unrolled.
template <int kRow = 0>
KH_FN bool find_quantity(Quantity q, const PlaceFacts& facts, const RowToken* token, float& value) {
    if constexpr (kRow < kQuantities) {
        constexpr QuantityRow kOf = kQuantityTable[kRow];
        if (q != kOf.quantity) return find_quantity<kRow + 1>(q, facts, token, value);
        if (kOf.known_by != KnownBy::place && token == nullptr) return false;
        if constexpr (kOf.whole != nullptr) value = static_cast<float>(facts.*kOf.whole);
        if constexpr (kOf.number != nullptr) value = facts.*kOf.number;
        if constexpr (kOf.of_row != nullptr) value = token->*kOf.of_row;
        return kOf.whole != nullptr || kOf.number != nullptr || kOf.of_row != nullptr;
    } else {
        return false;
    }
}

}  // namespace keyhole
