#include "engine/eval/answer_file.h"

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"

#include <stdexcept>

namespace keyhole {

namespace {
constexpr const char* kHeader = "questions,lane,question,right,nats,tokens,bytes";
constexpr std::string_view kModel = " model=", kBackend = " backend=";

/// What asked_on() and identities put together: the questions, the model, the backend.
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
}  // namespace

std::string asked_on(const std::string& identity, std::string_view backend_name) {
    const std::string_view kind = backend_name.substr(0, backend_name.find(','));
    return kind == "cpu" ? identity : fmt::format("{}{}{}", identity, kBackend, kind);
}

std::string csv_field(const std::string& text) {
    if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
    std::string out = "\"";
    for (char c : text) {
        out += c;
        if (c == '"') out += c;
    }
    return out + '"';
}

std::vector<std::string> split_csv(const std::string& line) {
    std::vector<std::string> fields(1);
    bool quoted = false;
    for (std::size_t i = 0; i < line.size(); ++i) {
        const char c = line[i];
        if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
            fields.back() += c;
            ++i;
        } else if (c == '"') {
            quoted = !quoted;
        } else if (c == ',' && !quoted) {
            fields.emplace_back();
        } else {
            fields.back() += c;
        }
    }
    return fields;
}

AnswerFile::AnswerFile(std::filesystem::path path) : path_(std::move(path)) {
    std::string whole;
    if (std::filesystem::exists(path_)) {
        const std::string text = read_text_file(path_);
        std::size_t number = 0;
        for (std::size_t at = 0; at < text.size(); ++number) {
            const std::size_t end = text.find('\n', at);
            if (end == std::string::npos) break;
            const std::string line = text.substr(at, end - at);
            at = end + 1;
            whole += line + "\n";
            if (number == 0 && line == kHeader) continue;
            try {
                const std::vector<std::string> f = split_csv(line);
                if (number == 0 || f.size() != 7) throw std::invalid_argument(line);
                known_[{f[0], f[1]}][std::stoi(f[2])] = {std::stod(f[4]), std::stoi(f[5]), std::stoi(f[6]),
                                                         f[3] == "1"};
            } catch (const std::logic_error&) {
                fail(ErrorCode::bad_file,
                     "{}:{} is no answer of a sweep; move the file away or give another --out",
                     path_.string(), number + 1);
            }
        }
    }
    std::error_code error;
    if (std::filesystem::exists(path_)) std::filesystem::resize_file(path_, whole.size(), error);
    out_.open(path_, std::ios::binary | std::ios::app);
    if (error) out_.setstate(std::ios::failbit);
    if (whole.empty()) out_ << kHeader << "\n";
    flush();
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
        const std::string model =
            known.model == own.model ? "this model" : fmt::format("another model ({:.8})", known.model);
        counts[fmt::format("{} on {}", model, known.backend)] += answers.size();
    }
    if (counts.empty()) return {};
    std::string list;
    for (const auto& [by, n] : counts)
        list += fmt::format("{}{} answers of {}", list.empty() ? "" : ", ", n, by);
    return fmt::format("{} holds {}; they stay and are not counted here, where this model answers on {}",
                       path_.string(), list, own.backend);
}

void AnswerFile::add(const std::string& set, const std::string& lane, int question, const Outcome& outcome) {
    known_[{set, lane}][question] = outcome;
    out_ << fmt::format("{},{},{},{},{},{},{}\n", csv_field(set), csv_field(lane), question,
                        outcome.right ? 1 : 0, outcome.nats, outcome.n_tokens, outcome.n_bytes);
}

void AnswerFile::flush() {
    out_.flush();
    if (!out_) fail(ErrorCode::io, "cannot write {}; check the folder and the free space", path_.string());
}

}  // namespace keyhole
