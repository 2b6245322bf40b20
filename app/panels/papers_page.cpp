#include "app/panels/papers_page.h"

#include "app/gl/imgui_compat.h"
#include "app/models/catalog.h"
#include "engine/base/index.h"
#include "engine/base/model_name.h"

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

using Finding = FigureRecord::Finding;

constexpr float kThumbnail = 200;  // width, unscaled

ImU32 color_of_verdict(std::string_view verdict) {
    const theme::Colors& colors = theme::colors();
    return verdict == "holds"                        ? colors.good
           : verdict == "fails"                      ? colors.fault
           : verdict == "open" || verdict == "mixed" ? colors.accent
                                                     : colors.dim;
}

/// Returns a time as the page says it: "6 s", "2 min".
std::string time_text(double minutes) {
    return minutes < 1 ? fmt::format("{:.0f} s", 60 * minutes) : fmt::format("{:g} min", minutes);
}

/// Returns which models show the effect, as a sentence.
std::string models_text(const PaperCard& card) {
    if (card.seen_on == "any") return "Any model shows it.";
    constexpr std::string_view kSink = " (a sink)";
    if (card.seen_on.ends_with(kSink))
        return fmt::format("Needs a model with an attention sink, such as {}.",
                           card.seen_on.substr(0, card.seen_on.size() - kSink.size()));
    return fmt::format("Needs {}.", card.seen_on);
}

/// Returns a paper as its readers know it.
std::string_view name_of_paper(std::string_view paper) {
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kPapers = {
        {{"keyformer", "Keyformer (Adnan et al. 2024)"},
         {"a2sf", "A2SF (Jo and Shin 2024)"},
         {"tova", "TOVA (Oren et al. 2024)"},
         {"mlkv", "MLKV (Zuhri et al. 2024)"}}};
    for (const auto& [id, name] : kPapers)
        if (id == paper) return name;
    return paper;
}

std::filesystem::path picture_of(const MadeFigure& made, const Finding& finding) {
    return made.folder / (finding.picture + ".png");
}

/// Returns what stands for the card in the list: made on the model that shows the effect, else the first.
const MadeFigure* shown_of(const PaperCard& card, const std::vector<MadeFigure>& made) {
    for (const MadeFigure& one : made)
        if (card.seen_on.starts_with(one.model)) return &one;
    return made.empty() ? nullptr : &made.front();
}

/// Draws a picture as large as the box allows, or words where there is none. Returns true if it was clicked.
bool picture_button(const PictureTexture* picture, ImVec2 box, const char* words) {
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const bool clicked = ImGui::InvisibleButton("picture", box);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    ImVec2 size = ImGui::CalcTextSize(words);
    if (picture != nullptr) {
        const float width = static_cast<float>(picture->width), height = static_cast<float>(picture->height);
        const float scale = std::min(box.x / width, box.y / height);
        size = {width * scale, height * scale};
    }
    const ImVec2 min(at.x + (box.x - size.x) / 2, at.y + (box.y - size.y) / 2);
    if (picture != nullptr)
        list.AddImage(imgui_compat::texture_id(picture->texture.name()), min,
                      {min.x + size.x, min.y + size.y});
    else
        list.AddText(min, theme::colors().dim, words);
    list.AddRect(at, {at.x + box.x, at.y + box.y},
                 ImGui::IsItemHovered() ? theme::colors().accent : theme::colors().line);
    return clicked;
}

void draw_verdicts(const PanelContext& context, const MadeFigure& made) {
    for (const Finding& finding : made.record.findings) {
        const std::string_view label = verdict_label(finding.verdict);
        colored_text(color_of_verdict(finding.verdict), label.empty() ? "No finding is decided" : label);
        ImGui::SameLine();
        const std::string where =
            finding.task.empty() ? made.model : fmt::format("{}, {}", made.model, finding.task);
        dim_text(context, where);
        if (!finding.why.empty()) small_words(context, capitalised(finding.why));
    }
}

/// Returns the model of the run, and those of the catalogue that are here.
std::vector<ModelChoice> models_here(const AppState& app) {
    std::vector<ModelChoice> models;
    if (const std::filesystem::path& path = app.run.setup.model_folder; !path.empty()) {
        const CatalogModel* known = find_by_path(app.catalog, path);
        models.push_back({known != nullptr ? known->name : model_name(path), path.string()});
    }
    for (const CatalogModel& model : app.catalog)
        if (const auto path = path_if_here(model); path && (models.empty() || models[0].name != model.name))
            models.push_back({model.name, path->string()});
    return models;
}

void draw_buttons(const PapersPage& page, const PanelContext& context, const PaperCard& card,
                  std::size_t index) {
    const PaperFigures& papers = context.app.papers;
    if (papers.running() && papers.wanted() == card.name) {
        dim_text(context, fmt::format("on {}: {:.0f} s so far, about {} on an idle machine",
                                      papers.wanted_model(), papers.seconds(), time_text(card.minutes)));
        if (ImGui::Button("Cancel")) run(context, "papers.cancel");
        mark_item(context, "papers.cancel");
        return;
    }
    if (card.makeable) {
        const ScopedDisabled disabled(papers.running());
        if (card.has_models()) {
            if (ImGui::Button("Make")) run(context, "papers.make " + card.name);
            mark_item(context, "papers.make " + card.name);
            tooltip(context, "Runs the command on the models that it names, in the background.");
            ImGui::SameLine();
        } else {
            for (const auto& [name, path] : page.models) {
                // The model of the run, and that which shows the effect.
                if (name != page.models.front().name && !card.seen_on.starts_with(name)) continue;
                if (ImGui::Button(fmt::format("Make on {}", name).c_str()))
                    run(context, fmt::format("papers.make {} {}", card.name, path));
                mark_item(context, fmt::format("papers.make {} {}", card.name, name));
                tooltip(context, fmt::format("Runs `{}` on this model, in the background.", card.command));
                ImGui::SameLine();
            }
        }
    }
    if (ImGui::Button("Copy the command")) run(context, "copy " + card.command);
    tooltip(context, card.command);
    if (!papers.made(index).empty() && papers.enlarged.empty()) {
        ImGui::SameLine();
        if (ImGui::Button("Enlarge")) run(context, "papers.open " + card.name);
        mark_item(context, "papers.open " + card.name);
    }
}

void draw_card(PapersPage& page, const PanelContext& context, const PaperCard& card, std::size_t index) {
    const ScopedId id(static_cast<int>(index));
    const std::vector<MadeFigure>& made = context.app.papers.made(index);
    const MadeFigure* shown = shown_of(card, made);
    const float width = context.px(kThumbnail);
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    // A picture below the edge of the list is neither read nor kept.
    const bool seen = ImGui::IsRectVisible({width, width});
    const PictureTexture* picture =
        shown != nullptr && seen ? page.pictures.get(picture_of(*shown, shown->record.findings.front()),
                                                     static_cast<int>(2 * width))
                                 : nullptr;
    if (picture_button(picture, {width, width * 0.6f},
                       card.makeable ? "not made yet" : "by another command") &&
        shown != nullptr)
        run(context, "papers.open " + card.name);
    mark_item(context, "paper " + card.name);
    ImGui::TableNextColumn();
    {
        const ScopedFont font(context.fonts.bold);
        colored_text(theme::colors().text, fmt::format("{}  {}", card.name, card.title));
    }
    small_words(
        context,
        fmt::format("The paper: {}{}", card.finding,
                    card.paper_values.empty() ? "" : fmt::format(" It measured {}.", card.paper_values)));
    for (const MadeFigure& one : made) draw_verdicts(context, one);
    if (made.empty())
        dim_text(context, fmt::format("{} About {}.", models_text(card), time_text(card.minutes)));
    draw_buttons(page, context, card, index);
    ImGui::Spacing();
}

void draw_list(PapersPage& page, const PanelContext& context) {
    const PaperFigures& papers = context.app.papers;
    small_words(
        context,
        "Figures and tables of the papers, drawn from runs of Keyhole. Each one says whether the paper's "
        "finding holds on the model that you choose. They are made in the background and kept.");
    const ScopedChild child("cards", {0, ImGui::GetIO().DisplaySize.y * 0.66f});
    std::string paper;
    bool open = false;
    for (std::size_t i = 0; i < papers.cards.size(); ++i) {
        const PaperCard& card = papers.cards[i];
        if (card.paper() != paper) {
            if (open) ImGui::EndTable();
            paper = card.paper();
            heading(context, name_of_paper(paper), theme::colors().accent);
            open = ImGui::BeginTable(paper.c_str(), 2);
            if (open) {
                ImGui::TableSetupColumn("picture", ImGuiTableColumnFlags_WidthFixed, context.px(kThumbnail));
                ImGui::TableSetupColumn("words", ImGuiTableColumnFlags_WidthStretch);
            }
        }
        if (open) draw_card(page, context, card, i);
    }
    if (open) ImGui::EndTable();
}

/// Draws one card's pictures as wide as the window, with all their sentences.
void draw_enlarged(PapersPage& page, const PanelContext& context, const PaperCard& card, std::size_t index) {
    if (ImGui::Button("Back to the list")) run(context, "papers.open");
    mark_item(context, "papers.back");
    ImGui::SameLine();
    heading(context, fmt::format("{}  {}", card.name, card.title), theme::colors().accent);
    const ScopedChild child("enlarged", {0, ImGui::GetIO().DisplaySize.y * 0.66f});
    const float width = ImGui::GetContentRegionAvail().x;
    int n = 0;
    for (const MadeFigure& made : context.app.papers.made(index)) {
        draw_verdicts(context, made);
        for (const Finding& finding : made.record.findings) {
            const ScopedId id(n++);
            const PictureTexture* picture = page.pictures.get(picture_of(made, finding), 2400);
            const float shape = picture != nullptr
                                    ? static_cast<float>(picture->height) / static_cast<float>(picture->width)
                                    : 0.5f;
            picture_button(picture, {width, width * shape}, "the picture is missing");
            mark_item(context, fmt::format("paper picture {}", n - 1));
            dim_text(context, fmt::format("{}   {}", made.model, (made.folder / finding.picture).string()));
            ImGui::Spacing();
        }
    }
    small_words(context, "Beside each picture lie SVG and PDF, and a table of its points.");
    draw_buttons(page, context, card, index);
}

}  // namespace

void draw(PapersPage& page, const PanelContext& context) {
    const PaperFigures& papers = context.app.papers;
    page.models = models_here(context.app);  // asks the file system, so once a frame
    page.pictures.load_all(!context.shared.panes_may_lag);
    const auto card = std::ranges::find(papers.cards, papers.enlarged, &PaperCard::name);
    if (card == papers.cards.end())
        draw_list(page, context);
    else
        draw_enlarged(page, context, *card, to_index(static_cast<int>(card - papers.cards.begin())));
    if (page.pictures.end_frame()) context.shared.panes_lag = true;
}

}  // namespace keyhole
