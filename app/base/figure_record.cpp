#include "app/base/figure_record.h"

#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/json_file.h"
#include "engine/base/mapped_file.h"
#include "engine/base/staged_folder.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMostBytes = 1 << 24, kMostText = 4096, kMostEntries = 64;
constexpr std::size_t kMostComparisons = 4096, kMostSamples = 1 << 20;
constexpr double kMostGain = 1e9;

constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kVerdicts = {
    {{"holds", "Holds here"},
     {"fails", "Does not hold here"},
     {"mixed", "Holds in part here"},
     {"open", "Cannot be decided here"},
     {"few", "Too few samples"},
     {"unseen", "Cannot be seen on this model"},
     {"measured", "Measured here"},
     {"none", ""}}};

std::vector<std::string> texts(const JsonField& list) {
    std::vector<std::string> read;
    for (std::size_t i = 0; i < list.size(kMostEntries); ++i) read.push_back(list.at(i).text(kMostText));
    return read;
}

FigureRecord::Evidence evidence_of(const JsonField& in) {
    FigureRecord::Evidence evidence;
    evidence.subject = in["subject"].text(kMostText);
    evidence.samples = in["samples"].text(kMostText);
    const JsonField comparisons = in["comparisons"];
    for (std::size_t i = 0; i < comparisons.size(kMostComparisons); ++i) {
        const JsonField from = comparisons.at(i), gains = from["gains"];
        FigureRecord::Comparison& to = evidence.comparisons.emplace_back();
        to.name = from["name"].text(kMostText);
        for (std::size_t sample = 0; sample < gains.size(kMostSamples); ++sample)
            to.gains.push_back(gains.at(sample).number(-kMostGain, kMostGain));
        if (to.gains.size() != evidence.comparisons.front().gains.size())
            gains.wanted("as many samples as in the first comparison");
    }
    return evidence;
}

nlohmann::json json_of(const FigureRecord::Evidence& evidence) {
    nlohmann::json comparisons = nlohmann::json::array();
    for (const FigureRecord::Comparison& one : evidence.comparisons)
        comparisons.push_back({{"name", one.name}, {"gains", one.gains}});
    return {{"subject", evidence.subject}, {"samples", evidence.samples}, {"comparisons", comparisons}};
}

FigureRecord::Finding finding_of(const JsonField& in) {
    FigureRecord::Finding finding;
    finding.task = in["task"].text(kMostText);
    finding.verdict = in["verdict"].text(kMostText);
    if (std::ranges::find(kVerdicts, finding.verdict, [](const auto& known) { return known.first; }) ==
        kVerdicts.end())
        in["verdict"].wanted("holds, fails, mixed, open, few, unseen, measured or none");
    finding.why = in["why"].text(kMostText);
    finding.sentences = texts(in["sentences"]);
    finding.picture = in["picture"].text(kMostText);
    if (finding.picture.empty() || finding.picture.find('/') != std::string::npos)
        in["picture"].wanted("the name of a file in the same folder");
    // Older versions wrote none.
    if (const auto evidence = in.find("evidence")) finding.evidence = evidence_of(*evidence);
    return finding;
}

nlohmann::json json_of(const FigureRecord& record) {
    nlohmann::json findings = nlohmann::json::array();
    for (const FigureRecord::Finding& finding : record.findings) {
        nlohmann::json& out = findings.emplace_back(nlohmann::json{{"task", finding.task},
                                                                   {"verdict", finding.verdict},
                                                                   {"why", finding.why},
                                                                   {"sentences", finding.sentences},
                                                                   {"picture", finding.picture}});
        if (!finding.evidence.comparisons.empty()) out["evidence"] = json_of(finding.evidence);
    }
    return {{"figure", record.figure}, {"models", record.models}, {"findings", findings}};
}

/// Returns the records of a folder as a list, the newest first, without the list in them. Throws Error(io)
/// for another program's figure.json.
nlohmann::json records_in(const fs::path& folder) {
    const fs::path file = folder / kFigureRecordName;
    nlohmann::json all = nlohmann::json::array();
    std::error_code error;
    if (fs::symlink_status(file, error).type() == fs::file_type::not_found) return all;
    nlohmann::json newest;
    try {
        newest = json_of_text(read_text_file(file, kMostBytes));
    } catch (const Error&) {
        newest = nlohmann::json();
    }
    if (!newest.is_object() || !newest.contains("figure") || !newest["figure"].is_string())
        fail(ErrorCode::io,
             "cannot write a figure to {}: its {} is not of `keyhole figure`; move it away or choose another "
             "folder with --out",
             folder.string(), kFigureRecordName);
    nlohmann::json others = nlohmann::json::array();
    if (const auto list = newest.find("others"); list != newest.end()) {
        others = std::move(*list);
        newest.erase(list);
    }
    all.push_back(std::move(newest));
    for (nlohmann::json& other : others)
        if (other.is_object() && other.contains("figure") && other["figure"].is_string())
            all.push_back(std::move(other));
    return all;
}

}  // namespace

std::string_view verdict_label(std::string_view verdict) {
    for (const auto& [known, label] : kVerdicts)
        if (known == verdict) return label;
    return {};
}

std::vector<std::string> files_of_figure(const fs::path& folder, const std::string& figure) {
    const nlohmann::json known = records_in(folder);
    if (known.empty()) return {};
    std::vector<std::string> names = {std::string(kFigureRecordName)};
    for (const nlohmann::json& record : known) {
        if (record["figure"] != figure) continue;
        if (!record.contains("files"))  // of a version that named its files by the figure and kept no list
            for (const char* ending : {".csv", ".svg", ".png", ".pdf"}) names.push_back(figure + ending);
        else if (record["files"].is_array())
            for (const nlohmann::json& name : record["files"])
                if (name.is_string() && is_name_below(name.get_ref<const std::string&>()))
                    names.push_back(name);
    }
    return names;
}

std::string figure_record_text(const FigureRecord& record, const std::vector<std::string>& files,
                               const fs::path& folder, const std::string& program, const std::string& command,
                               const std::vector<std::string>& marks) {
    nlohmann::json json = json_of(record);
    json["files"] = files;
    json["program"] = program;
    json["command"] = command;
    json["measured_on"] = marks;
    nlohmann::json others = nlohmann::json::array();
    for (nlohmann::json& other : records_in(folder))
        if (other["figure"] != record.figure) others.push_back(std::move(other));
    json["others"] = std::move(others);
    return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

FigureRecord read_figure_record(const std::filesystem::path& folder) {
    const std::filesystem::path file = folder / kFigureRecordName;
    const std::string name = file.string();
    const nlohmann::json root = parse_json(read_text_file(file, kMostBytes), name);
    const JsonField in(root, name);
    FigureRecord record;
    record.figure = in["figure"].text(kMostText);
    record.models = texts(in["models"]);
    const JsonField findings = in["findings"];
    for (std::size_t i = 0; i < findings.size(kMostEntries); ++i)
        record.findings.push_back(finding_of(findings.at(i)));
    if (record.findings.empty()) findings.wanted("at least one finding");
    return record;
}

}  // namespace keyhole
