/// Prints and writes what single heads of lanes held and attended to.
/// Main thread; knows no window, and computes no measures itself.
#pragma once

#include "app/study/eval_report.h"
#include "engine/eval/head_measures.h"
#include "engine/figure/value_map.h"
#include "engine/model/kv_layout.h"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// The heads of one lane, and what each KV head's tokens are worth to the answer where that was measured.
struct HeadReport {
    std::string label;
    LaneSpec lane;
    KvLayout layout;
    LaneHeads heads;                        ///< means
    std::map<std::string, double> effects;  ///< nats by part, "L5.G2"; empty: not measured
};

/// What `keyhole attribute` found in a folder.
struct KnownEffects {
    std::string lane;                    ///< answer_lane(); empty: nothing that counts
    std::map<std::string, double> nats;  ///< by part
    std::string why_not;  ///< why what is there does not count; empty: it does, or nothing is there
};
/// Reads the folder's attribution.json, which must be of these questions: asked_on() and their number.
KnownEffects known_effects(const std::filesystem::path& folder, const std::string& asked, int n_questions);

/// Returns a table of each lane: the `most` heads that would attend to the answer most, or lose most of their
/// attention where questions state no answer.
std::string head_text(std::span<const HeadReport> lanes, std::size_t most);
/// Returns by_head.csv: a line for each lane and query head.
std::string head_csv(const std::string& questions, std::span<const HeadReport> lanes);
/// The picture of a measure.
struct HeadMap {
    std::string name;  ///< of the measure's column in by_head.csv
    ValueMap map;      ///< layers by query heads, a panel for each lane
};
/// Returns the names of all measures.
std::vector<std::string> head_map_names();
/// Returns a picture of each measure that some head has.
std::vector<HeadMap> head_maps(const std::string& questions, std::span<const HeadReport> lanes);
nlohmann::json head_json(const std::string& questions, std::span<const HeadReport> lanes);

}  // namespace keyhole
