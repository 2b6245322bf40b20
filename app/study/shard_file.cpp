#include "app/study/shard_file.h"

#include "app/base/command_text.h"
#include "app/base/version.h"
#include "engine/base/counted.h"
#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/json_text.h"
#include "engine/base/make_folder.h"
#include "engine/base/mapped_file.h"
#include "engine/base/path_lock.h"
#include "engine/eval/answer_file.h"
#include "engine/model/digest.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <optional>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

constexpr const char* kShardName = "shard.json";
constexpr std::size_t kMostShardBytes = 64 << 20;

/// A shard's file as read.
struct ShardRecord {
    Shard shard;
    std::string folder, hash, program, command;  ///< command: its folder is OUT
    std::vector<ShardNeed> needs;
};

/// Returns a hash of what all shards of a command have in common.
std::string hash_of(std::span<const ShardNeed> needs, int n_shards) {
    std::string text = fmt::format("shards={}\n", n_shards);
    for (const ShardNeed& need : needs) {
        text += fmt::format("{}\n{}\n", need.asked, need.n_questions);
        for (const std::string& lane : need.lanes) text += lane + "\n";
    }
    return fmt::format("{:016x}", digest_bytes(kDigestSeed, std::as_bytes(std::span(text))));
}

ShardRecord read_shard(const std::string& folder) {
    const std::string name = (fs::path(folder) / kShardName).string();
    std::error_code error;
    if (fs::symlink_status(name, error).type() == fs::file_type::not_found)
        fail(ErrorCode::bad_file,
             "cannot join {}: it is no shard, since it has no {}; name folders that a command with --shard "
             "wrote",
             folder, kShardName);
    const nlohmann::json json = parse_json(read_text_file(name, kMostShardBytes), name);
    const JsonField root(json, name);
    ShardRecord record;
    record.folder = folder;
    record.shard.n = root["of"].integer(1, kMostShards);
    record.shard.index = root["shard"].integer(1, record.shard.n);
    record.hash = root["hash"].text(64);
    record.program = root["program"].text(kMostShardBytes);
    record.command = root["command"].text(kMostShardBytes);
    const JsonField needs = root["needs"];
    for (std::size_t i = 0; i < needs.size(1 << 20); ++i) {
        const JsonField one = needs.at(i), lanes = one["lanes"];
        ShardNeed need{one["questions"].text(kMostShardBytes), one["n"].integer(1, 1 << 24), {}};
        for (std::size_t lane = 0; lane < lanes.size(1 << 20); ++lane)
            need.lanes.push_back(lanes.at(lane).text(kMostShardBytes));
        record.needs.push_back(std::move(need));
    }
    if (record.hash != hash_of(record.needs, record.shard.n))
        root["hash"].bad("it is not that of the questions");
    return record;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    if (const std::size_t at = text.find(from); !from.empty() && at != std::string::npos)
        text.replace(at, from.size(), to);
    return text;
}

/// Returns the command of another shard, or of none.
std::string command_of(const ShardRecord& known, const std::optional<Shard>& shard, const std::string& out) {
    const std::string other = shard ? " --shard " + shard_text(*shard) : std::string();
    std::string command = known.command;
    for (const char* option : {" --shard ", " --shard="})
        command = replaced(std::move(command), option + shard_text(known.shard), other);
    return replaced(std::move(command), " OUT", " " + shell_word(out));
}

/// Copies a shard's answers into the joined file. Returns how many of its own are missing.
int copy_answers(const ShardRecord& record, AnswerFile& into, MergeReport& report) {
    const AnswerFile from(fs::path(record.folder) / "answers.csv");
    into.set_made_by(fmt::format("{}: {}", record.program, record.command));
    int n_missing = 0;
    for (const ShardNeed& need : record.needs)
        for (int i = 0; i < need.n_questions; ++i) {
            if (!record.shard.has(i)) continue;
            for (const std::string& lane : need.lanes) {
                const std::optional<Outcome> found = from.find(need.asked, lane, i);
                (found ? report.n_answers : n_missing) += 1;
                if (!found || into.find(need.asked, lane, i)) continue;
                into.add(need.asked, lane, i, *found);
                ++report.n_new;
            }
        }
    into.flush();
    return n_missing;
}

}  // namespace

ShardNeed shard_need(const std::string& asked, int n_questions, std::span<const LaneSpec> lanes) {
    ShardNeed need{asked, n_questions, {}};
    for (const LaneSpec& lane : lanes) need.lanes.push_back(answer_lane(lane));
    return need;
}

void write_shard_file(const fs::path& folder, const Shard& shard, std::span<const ShardNeed> needs) {
    nlohmann::json json = {{"program", program_name()},
                           {"command", command_text()},
                           {"shard", shard.index},
                           {"of", shard.n},
                           {"hash", hash_of(needs, shard.n)},
                           {"needs", nlohmann::json::array()}};
    for (const ShardNeed& need : needs)
        json["needs"].push_back({{"questions", need.asked}, {"n", need.n_questions}, {"lanes", need.lanes}});
    write_text_file(folder / kShardName,
                    json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

std::string shard_note(const fs::path& folder, const Shard& shard) {
    return fmt::format(
        "shard {} is answered in {}; when all {} are, join their folders: keyhole merge FOLDER... --out "
        "FOLDER\n",
        shard_text(shard), folder.string(), shard.n);
}

MergeReport merge_shards(std::span<const std::string> folders, const std::string& out) {
    std::map<int, ShardRecord> records;
    for (const std::string& folder : folders) {
        ShardRecord record = read_shard(folder);
        if (!records.empty() && record.hash != records.begin()->second.hash)
            fail(ErrorCode::wrong_use,
                 "{} is no shard of the command of {}: their questions, lanes, models or numbers of shards "
                 "differ ({} and {})",
                 folder, records.begin()->second.folder, shown_text(record.hash),
                 shown_text(records.begin()->second.hash));
        const int index = record.shard.index;
        if (const auto [at, is_new] = records.emplace(index, std::move(record)); !is_new)
            fail(ErrorCode::wrong_use, "{} and {} are both shard {}; name each shard once", at->second.folder,
                 folder, shard_text(at->second.shard));
    }
    const ShardRecord& first = records.begin()->second;
    make_folder(out, "the joined answers");
    const PathLock lock = PathLock::take(out);
    AnswerFile into(fs::path(out) / "answers.csv");
    MergeReport report;
    for (int index = 1; index <= first.shard.n; ++index) {
        const auto found = records.find(index);
        const Shard shard{index, first.shard.n};
        const int n_missing = found == records.end() ? 1 : copy_answers(found->second, into, report);
        if (n_missing == 0) continue;
        const std::string folder =
            found == records.end() ? fmt::format("{}-{}", out, index) : found->second.folder;
        report.lost.push_back(fmt::format(
            "shard {} {}: {}", shard_text(shard),
            found == records.end() ? "is missing" : fmt::format("lacks {}", counted(n_missing, "answer")),
            command_of(first, shard, folder)));
    }
    report.next = command_of(first, std::nullopt, out);
    return report;
}

}  // namespace keyhole
