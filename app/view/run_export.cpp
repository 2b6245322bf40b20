#include "app/view/run_export.h"

#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/export/captions.h"

#include <algorithm>

namespace keyhole {

bool RunExport::has_answers() const {
    return std::any_of(views.begin(), views.end(),
                       [](const ViewWord& word) { return word.kind->of_answers; });
}

RowRequest RunExport::requested() const {
    RowRequest requested = files.requested();
    if (!views.empty()) requested.attention = requested.scores = true;
    return requested;
}

void RunExport::check(const ViewLimits& limits) {
    check_views(views, how, limits);
    if (!files.yes) check_views_size(views, how, limits);
    const ViewsSize size = views_size(views, how, limits);
    files.more_bytes = size.n_bytes;
    files.more_files = static_cast<int>(size.n_files);
}

void RunExport::check_watch(const RunHistory& history) const {
    if (!how.watch.empty() && !watched_span(history, 0, how.watch))
        fail(ErrorCode::wrong_use, "--watch: '{}' is not in the text", shown_text(how.watch));
}

std::vector<std::string> RunExport::leave_out_missing(const RunHistory& history, bool with_marks) {
    std::vector<std::string> faults;
    const auto holds = [&](const auto& check) {
        try {
            check();
            return true;
        } catch (const Error& error) {
            if (error.code() != ErrorCode::wrong_use) throw;
            const std::string fault = error.what();
            if (std::find(faults.begin(), faults.end(), fault) == faults.end()) faults.push_back(fault);
            return false;
        }
    };
    const ViewLimits limits = view_limits(history);
    std::erase_if(views, [&](const ViewWord& word) {
        return !holds([&] {
            check_views({word}, how, limits);
            if (word.kind->name == "watched")
                (void)watched_tokens(history, shown_lane(history, how.focus).lane, word);
        });
    });
    if (with_marks && !holds([&] { check_watch(history); })) watch("");
    return faults;
}

ExportSink::More RunExport::write_views_of(const RunHistory& history, int stride, int dense_from) const {
    if (views.empty()) return {};
    return [this, &history, stride, dense_from](const std::filesystem::path& folder,
                                                const ExportSink::Progress& progress) {
        ViewExport staged = how;
        staged.folder = folder;
        staged.program = files.program;
        staged.command = files.command;
        staged.pictures.made_by = made_by(history.run(), files.program, files.command);
        write_views(history, views, staged, stride, dense_from,
                    [&](double done) { progress(done, "views"); });
    };
}

std::string usual_export_list(int n_lanes, bool with_answers) {
    std::string list = "run,atlas";
    if (with_answers) list += ",answers";
    if (n_lanes > 1) list += ",curve:kl,curve:jaccard";
    return list;
}

void parse_run_export(const std::string& list, RunExport& out, bool of_records) {
    std::string files = list;
    out.views = take_view_words(files);
    const std::vector<std::string_view> names = view_names();
    parse_export_list(files, out.files, of_records, names);
    const auto is_on = [&](const ExportWord& word) { return out.files.*word.flag; };
    if (out.views.empty() && std::none_of(export_words().begin(), export_words().end(), is_on))
        fail(ErrorCode::wrong_use, "--export '{}' names nothing; known are {}, {}", list, export_word_list(),
             view_word_list());
}

}  // namespace keyhole
