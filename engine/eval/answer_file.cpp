#include "engine/eval/answer_file.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/base/number.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

namespace keyhole {

namespace {
constexpr std::string_view kHeader =
    "questions,lane,question,right,nats,tokens,bytes,measures,distance,depth,held,kl,made_by\n";
/// Headers of earlier versions: before answers had made_by, KL, their place, measures.
constexpr std::string_view kMakerlessHeader =
    "questions,lane,question,right,nats,tokens,bytes,measures,distance,depth,held,kl\n";
constexpr std::string_view kHeaderWithoutKl =
    "questions,lane,question,right,nats,tokens,bytes,measures,distance,depth,held\n";
constexpr std::string_view kPlacelessHeader = "questions,lane,question,right,nats,tokens,bytes,measures\n";
constexpr std::string_view kOldHeader = "questions,lane,question,right,nats,tokens,bytes\n";
constexpr std::size_t kAnswerFields = 13, kMakerlessFields = 12, kFieldsWithoutKl = 11, kPlacelessFields = 8,
                      kOldFields = 7;
constexpr std::string_view kModel = " model=", kBackend = " backend=";

/// The parts of a set's name, as asked_on() and identities join them: the questions, the model, the backend.
struct AskedOn {
    std::string_view questions, model, backend = "cpu";
};

AskedOn parts_of(std::string_view set) {
    AskedOn parts;
    if (const std::size_t at = set.rfind(kBackend); at != std::string_view::npos) {
        parts.backend = set.substr(at + kBackend.size());
        set = set.substr(0, at);
    }
    const std::size_t at = set.rfind(kModel);
    parts.questions = set.substr(0, at);
    if (at != std::string_view::npos) parts.model = set.substr(at + kModel.size());
    return parts;
}

/// Returns the model's hash without what else its answers depend on.
std::string_view hash_of(const AskedOn& parts) {
    return parts.model.substr(0, parts.model.find(' '));
}

struct Answer {
    std::string set, lane;
    int question = 0;
    Outcome outcome;
};

/// Reads `0.5;0.25`.
std::vector<double> parse_measures(std::string_view text) {
    std::vector<double> measures;
    while (!text.empty()) {
        const std::string_view item = text.substr(0, text.find(';'));
        measures.push_back(read_number("measure", item, 0.0, 1.0));
        text.remove_prefix(std::min(item.size() + 1, text.size()));
    }
    return measures;
}

/// Returns the lane of an answer from before lanes had a number type, when K and V were f32.
std::string stored_as_f32(const std::string& lane) {
    try {
        LaneSpec spec = parse_stored_lane_spec(lane);
        if (spec.policy.kv_dtype == KvType::automatic) spec.policy.kv_dtype = KvType::f32;
        return format_lane_spec(spec);
    } catch (const Error&) {
        return lane;
    }
}

double share_or_nan(std::string_view what, const std::string& field) {
    return field.empty() ? std::nan("") : read_number(what, field, 0.0, 1.0);
}

std::string share_field(double share) {
    return std::isnan(share) ? "" : fmt::format("{}", share);  // as many digits as reading it back needs
}

/// Parses a line of the file. Throws Error(wrong_use) for anything that eval cannot have written.
Answer parse_answer(std::string_view line, std::size_t n_fields) {
    constexpr int kMost = 1 << 24;
    const std::vector<std::string> fields = split_csv(line);
    if (fields.size() != n_fields)
        fail(ErrorCode::wrong_use, "'{}' has {} fields, not {}", shown_text(line), fields.size(), n_fields);
    Answer answer{fields[0], fields[1], read_number("question", fields[2], 0, kMost), {}};
    answer.outcome.right = read_number("right", fields[3], 0, 1) == 1;
    answer.outcome.nats = read_number("nats", fields[4], 0.0);
    answer.outcome.n_tokens = read_number("tokens", fields[5], 1, kMost);
    answer.outcome.n_bytes = read_number("bytes", fields[6], 0, kMost);
    if (n_fields == kOldFields) {
        answer.lane = stored_as_f32(answer.lane);
        return answer;
    }
    answer.outcome.measures = parse_measures(fields[7]);
    if (n_fields == kPlacelessFields) return answer;
    if (!fields[8].empty()) answer.outcome.distance = read_number("distance", fields[8], 0, kMost);
    answer.outcome.depth = share_or_nan("depth", fields[9]);
    answer.outcome.held = share_or_nan("held", fields[10]);
    if (n_fields != kFieldsWithoutKl && !fields[11].empty())
        answer.outcome.kl = read_number("kl", fields[11], 0.0);
    return answer;
}
}  // namespace

std::string answer_lane(const LaneSpec& lane) {
    const Calibration* read = lane.policy.calibration.read.get();
    return format_lane_spec(lane) +
           (read == nullptr ? "" : fmt::format(" calibration={:016x}", read->digest));
}

std::string asked_on(const std::string& identity, std::string_view backend_name) {
    std::string kind(backend_name.substr(0, backend_name.find(',')));
    const std::size_t last = backend_name.rfind(", ");
    if (last != std::string_view::npos)
        if (const std::string_view how = backend_name.substr(last + 2);
            how == "integers" || how.ends_with(" precision"))
            kind += fmt::format(" {}", how);
    return kind == "cpu" ? identity : fmt::format("{}{}{}", identity, kBackend, kind);
}

namespace {

/// Returns how many fields the lines of a file have; 0: another file.
std::size_t n_fields_of(std::string_view text) {
    return text.starts_with(kHeader)            ? kAnswerFields
           : text.starts_with(kMakerlessHeader) ? kMakerlessFields
           : text.starts_with(kHeaderWithoutKl) ? kFieldsWithoutKl
           : text.starts_with(kPlacelessHeader) ? kPlacelessFields
           : text.starts_with(kOldHeader)       ? kOldFields
                                                : 0;
}

/// Returns the lines of an earlier version's file with the fields that it lacks, which are empty. Lanes from
/// before there were number types name theirs.
std::string in_this_version(std::string_view old) {
    const std::size_t n_fields = n_fields_of(old);
    std::string text(kHeader);
    for (old.remove_prefix(old.find('\n') + 1); !old.empty(); old.remove_prefix(old.find('\n') + 1)) {
        std::vector<std::string> fields = split_csv(old.substr(0, old.find('\n')));
        if (n_fields == kOldFields) fields[1] = stored_as_f32(fields[1]);
        fields.resize(kAnswerFields);
        for (std::size_t i = 0; i < fields.size(); ++i) text += (i == 0 ? "" : ",") + csv_field(fields[i]);
        text += "\n";
    }
    return text;
}

}  // namespace

AnswerFile::AnswerFile(std::filesystem::path path) : path_(std::move(path)) {
    std::error_code error;
    const std::string text = std::filesystem::exists(path_, error) ? read_text_file(path_) : std::string();
    const std::size_t whole = read_answers(text);
    if (whole > 0 && n_fields_of(text) != kAnswerFields)
        write_text_file(path_, in_this_version(std::string_view(text).substr(0, whole)));
    else if (whole < text.size())
        std::filesystem::resize_file(path_, whole, error);
    errno = 0;
    out_.open(path_, std::ios::binary | std::ios::app);
    reason_ = error ? error.value() : errno;
    if (error) out_.setstate(std::ios::failbit);
    if (whole == 0) out_ << kHeader;
    flush();
}

/// Reads the complete lines and returns their size.
std::size_t AnswerFile::read_answers(std::string_view text) {
    const auto refuse = [&](std::size_t line, std::string_view why) {
        fail(ErrorCode::bad_file,
             "{}:{} is no answer of a sweep: {}; move the file away or give another --out", path_.string(),
             line, why);
    };
    const std::size_t n_fields = n_fields_of(text);
    if (n_fields == 0) {
        // Cut off in the first line, or a different file.
        if (!kHeader.starts_with(text))
            refuse(1, fmt::format("'{}' is not its header", shown_text(text.substr(0, text.find('\n')))));
        return 0;
    }
    std::size_t at = text.find('\n') + 1;
    for (std::size_t line = 2; at < text.size(); ++line) {
        const std::size_t end = text.find('\n', at);
        if (end == std::string_view::npos) break;  // cut off
        try {
            Answer answer = parse_answer(text.substr(at, end - at), n_fields);
            known_[{std::move(answer.set), std::move(answer.lane)}][answer.question] = answer.outcome;
        } catch (const Error& error) {
            refuse(line, error.what());
        }
        at = end + 1;
    }
    return at;
}

std::optional<Outcome> AnswerFile::find(const std::string& set, const std::string& lane, int question) const {
    const auto of_lane = known_.find({set, lane});
    if (of_lane == known_.end()) return std::nullopt;
    const auto found = of_lane->second.find(question);
    return found == of_lane->second.end() ? std::nullopt : std::optional(found->second);
}

std::string AnswerFile::others(const std::string& set) const {
    const AskedOn own = parts_of(set);
    std::map<std::string, std::size_t> counts;
    for (const auto& [key, answers] : known_) {
        const AskedOn known = parts_of(key.first);
        if (key.first == set || known.questions != own.questions) continue;
        const std::string_view hash = hash_of(known);
        const std::string model =
            hash != hash_of(own)       ? fmt::format("another model ({})", shown_text(hash.substr(0, 8)))
            : known.model == own.model ? "this model"
                                       : "this model with another tokenizer or chat template";
        counts[fmt::format("{} on {}", model, shown_text(known.backend))] += answers.size();
    }
    if (counts.empty()) return {};
    std::string list;
    for (const auto& [by, n] : counts)
        list += fmt::format("{}{} answers of {}", list.empty() ? "" : ", ", n, by);
    return fmt::format("{} holds {}; they stay and are not counted here, where this model answers on {}",
                       path_.string(), list, own.backend);
}

void AnswerFile::set_made_by(std::string made_by) {
    made_by_ = std::move(made_by);
    for (char& c : made_by_)
        if (c == '\n' || c == '\r') c = ' ';  // an answer is a line
}

void AnswerFile::add(const std::string& set, const std::string& lane, int question, const Outcome& outcome) {
    if (!std::isfinite(outcome.nats))
        fail(ErrorCode::bad_file,
             "question {} of lane '{}' has no probability: the model computes values that are not finite, so "
             "its weights may be damaged",
             question, lane);
    known_[{set, lane}][question] = outcome;
    errno = 0;
    out_ << fmt::format(
        "{},{},{},{},{},{},{},{},{},{},{},{},{}\n", csv_field(set), csv_field(lane), question,
        outcome.right ? 1 : 0, outcome.nats, outcome.n_tokens, outcome.n_bytes,
        fmt::join(outcome.measures, ";"), outcome.distance > 0 ? std::to_string(outcome.distance) : "",
        share_field(outcome.depth), share_field(outcome.held),
        std::isnan(outcome.kl) ? "" : fmt::format("{}", outcome.kl), csv_field(std::exchange(made_by_, "")));
    if (!out_) {
        reason_ = errno;
        flush();
    }
}

void AnswerFile::flush() {
    if (out_) {
        errno = 0;
        out_.flush();
        reason_ = errno;
    }
    if (!out_)
        fail(ErrorCode::io, "cannot write {}: {}; check that its folder is writable and has room",
             path_.string(), reason_ != 0 ? std::strerror(reason_) : "the system gives no reason");
}

}  // namespace keyhole
