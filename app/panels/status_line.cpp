#include "app/panels/status_line.h"

#include <string>

namespace keyhole {

namespace {

/// What the engine does. progress: from 0 to 1 where a bar shows it, else negative.
struct EngineState {
    std::string text;
    ImU32 color = theme::colors().dim;
    float progress = -1;
};

EngineState engine_state(const AppState& app) {
    if (!app.run.live()) return {.text = "trace " + app.run.opened_file.filename().string()};
    const EngineStatus& status = app.run.status;
    const auto progress = static_cast<float>(status.progress);
    switch (status.phase) {
        case EnginePhase::idle:
            return {.text = app.run.has_steps()      ? "stopped, Space runs"
                            : status.message.empty() ? "starting"
                                                     : "stopped"};
        case EnginePhase::loading:
            return {.text = "loading the model", .progress = progress > 0 ? progress : -1};
        case EnginePhase::prefill:
            return {.text = "reading the prompt", .progress = progress};
        case EnginePhase::running:
            return {.text = "decoding", .color = theme::colors().good};
        case EnginePhase::finished:
            return {.text = "finished"};
        case EnginePhase::failed:
            return {.text = "stopped", .color = theme::colors().fault};
    }
    return {};
}

/// Returns the words at the right end: the numbers of tokens, the speed and the backend.
std::string run_words(const AppState& app) {
    if (!app.run.has_steps()) return {};
    const EngineStatus& status = app.run.status;
    const RunInfo& run = app.run.history.run();
    std::string words = fmt::format(
        "prompt {} · decoded {}{} · {}", app.run.history.n_prompt(), app.run.n_decoded(),
        app.run.live() && status.steps_per_s > 0 ? fmt::format(" · {:.1f} steps/s", status.steps_per_s) : "",
        run.backend);
    if (app.run.last_row() + 1 > run.config.n_ctx)
        words += fmt::format(" · beyond the trained context of {}", run.config.n_ctx);
    return words;
}

/// Draws words, and leaves the cursor behind them.
void part(const PanelContext& context, const std::string& words, ImU32 color) {
    colored_text(color, words);
    ImGui::SameLine(0, context.px(14));
}

void draw_engine_state(const PanelContext& context, const EngineState& state, ImVec2 at, float line) {
    ImGui::GetWindowDrawList()->AddCircleFilled({at.x + line * 0.4f, at.y + line * 0.6f}, line * 0.28f,
                                                state.color);
    ImGui::SetCursorScreenPos({at.x + line, at.y});
    part(context, state.text, theme::colors().text);
    if (state.progress >= 0 && state.progress < 1) {
        ImGui::ProgressBar(state.progress, {context.px(120), line}, "");
        ImGui::SameLine(0, context.px(14));
    }
}

/// Draws what runs beside the engine, with a button that ends it. Returns whether something does.
bool draw_job(const PanelContext& context, float line) {
    const auto& jobs = context.app.jobs;
    const auto bar = [&](double done) {
        ImGui::ProgressBar(static_cast<float>(done), {context.px(120), line}, "");
        ImGui::SameLine();
    };
    if (jobs.getting()) {
        part(context, "getting " + jobs.wanted_model, theme::colors().dim);
        bar(jobs.get_job.progress());
        if (ImGui::SmallButton("Cancel##model")) run(context, "model.cancel");
        mark_item(context, "status model.cancel");
    } else if (jobs.opening() || jobs.export_job.running()) {
        part(context,
             jobs.opening()  ? "opening"
             : jobs.saving() ? "saving"
                             : "exporting",
             theme::colors().dim);
        bar(jobs.opening() ? jobs.open_job.progress() : jobs.export_job.progress());
        if (ImGui::SmallButton("Cancel##file")) run(context, "export.cancel");
        mark_item(context, "export.cancel");
    } else {
        return false;
    }
    ImGui::SameLine();
    return true;
}

/// Draws the last message, or that of the engine, as far as there is room: the pointer shows all of it.
void draw_message(const PanelContext& context, float room) {
    const AppState& app = context.app;
    const EngineStatus& status = app.run.status;
    const bool fault = app.notice.text.empty() ? status.phase == EnginePhase::failed : app.notice.is_fault;
    const std::string message = app.glyphs.text(
        app.notice.text.empty() ? (app.run.live() ? status.message : std::string()) : app.notice.text);
    const std::string cut = fitted(message, room);
    part(context, cut, fault ? theme::colors().fault : theme::colors().dim);
    if (cut == message) return;
    const ImVec2 min = ImGui::GetItemRectMin(), max = ImGui::GetItemRectMax();
    if (ImGui::IsMouseHoveringRect(min, max)) ImGui::SetTooltip("%s", message.c_str());
}

}  // namespace

void draw_status_line(const PanelContext& context) {
    const AppState& app = context.app;
    const ScopedFont font(context.fonts.small);
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float line = ImGui::GetFontSize();
    EngineState state = engine_state(app);
    if (app.run.is_replaying()) {
        state.text = app.run.status.work;
        state.progress = static_cast<float>(app.run.status.progress);
    }
    draw_engine_state(context, state, at, line);
    // Messages have the room that the right end leaves.
    const std::string right = run_words(app);
    const float right_width = ImGui::CalcTextSize(right.c_str()).x;
    const float end = ImGui::GetWindowPos().x + ImGui::GetWindowWidth() - context.px(12);
    const float room = end - right_width - context.px(20) - ImGui::GetCursorScreenPos().x;
    if (!draw_job(context, line)) draw_message(context, room);
    const ImVec2 corner(end - right_width, at.y);
    ImGui::GetWindowDrawList()->AddText(corner, theme::colors().dim, right.c_str());
    if (!right.empty()) mark_area(context, "status run", corner, {end, at.y + line});
    if (!app.run.status.precision.empty() && ImGui::IsMouseHoveringRect(corner, {end, at.y + line}))
        show_tooltip(context, capitalised(app.run.status.precision));
}

}  // namespace keyhole
