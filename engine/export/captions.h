/// The words over a picture of one head: the same in an export's folders, in views and in the window. Any
/// thread; draws nothing.
#pragma once

#include "engine/analysis/heat_mode.h"
#include "engine/analysis/token_span.h"
#include "engine/figure/frame.h"
#include "engine/model/kv_layout.h"
#include "engine/trace/run_history.h"

#include <optional>
#include <string>

namespace keyhole {

/// Returns what made a picture: "Keyhole 0.1: keyhole decode ...; model keyhole-base, 0123...".
std::string made_by(const RunInfo& run, const std::string& program, const std::string& command);

/// The label of an axis of rows: a row reads the token at the position of its number.
inline constexpr const char* kStepAxis = "position of the newest token";

/// Returns what the cells of a head's picture are, with its scale: "Attention probability ...".
std::string head_caption(HeatMode mode, const ColorScale& scale);

/// The name and the sentence of the column that a picture of attention has for the head's learned sink.
inline constexpr const char* kSinkColumn = "sink";
inline constexpr const char* kSinkCaption =
    "The column sink is no token: what the head's learned sink takes of each row, neither kept nor lost.";

/// Returns text such as "Attention of layer 0, head 3" or "Kept tokens of layer 0, KV head 1".
std::string head_title(HeatMode mode, const KvLayout& layout, int layer, int head);
/// Returns the same for the mask or the scores of a KV head.
std::string kv_head_title(HeatMode mode, const KvLayout& layout, int kv_head);

/// Returns the mark of watched words in a picture of these positions; an empty one where it shows none of
/// them.
MarkedColumns marked_columns(const RunHistory& history, int lane, const std::optional<TokenSpan>& watched,
                             int first_position, int last_position);

/// Returns text such as "lane 1: h2o:budget=64,recent=32", with the settings after a row. lane: into
/// history.lanes(); number: as the reader counts the lanes.
std::string lane_settings(const RunHistory& history, int lane, int number, int row);
/// Returns the same after the model: "keyhole-base · lane 1: ...".
std::string lane_subtitle(const RunHistory& history, int lane, int number, int row);

/// Returns the number of a lane among those at the end of the run, which is how the window counts them; that
/// of history.lanes() for a lane that was removed.
int lane_number(const RunHistory& history, int lane);

}  // namespace keyhole
