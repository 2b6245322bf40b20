#include "app/base/figure_record.h"

#include "engine/base/json_field.h"
#include "engine/base/mapped_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace keyhole {

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

}  // namespace

std::string_view verdict_label(std::string_view verdict) {
    for (const auto& [known, label] : kVerdicts)
        if (known == verdict) return label;
    return {};
}

void write_figure_record(const FigureRecord& record, const std::filesystem::path& folder) {
    nlohmann::json findings = nlohmann::json::array();
    for (const FigureRecord::Finding& finding : record.findings) {
        nlohmann::json& out = findings.emplace_back(nlohmann::json{{"task", finding.task},
                                                                   {"verdict", finding.verdict},
                                                                   {"why", finding.why},
                                                                   {"sentences", finding.sentences},
                                                                   {"picture", finding.picture}});
        if (!finding.evidence.comparisons.empty()) out["evidence"] = json_of(finding.evidence);
    }
    const nlohmann::json json = {
        {"figure", record.figure}, {"models", record.models}, {"findings", findings}};
    write_text_file(folder / kFigureRecordName,
                    json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
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
