"""Repositories of the hub, as huggingface_hub knows them: where it is, who one is, and what a revision holds."""

from __future__ import annotations

from huggingface_hub import HfApi, ModelInfo, constants, get_token, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from ckconv.errors import InputError, short
from ckconv.io.http import HttpFile, retried


def offline() -> bool:
    """Only the cache may be asked."""
    return bool(constants.HF_HUB_OFFLINE)


def repository(name: str, revision: str | None) -> dict[str, HttpFile]:
    """Every file of a repository, at the one commit that the revision is now.

    Raises:
        InputError: ``input.missing`` or ``input.unreadable``.
        OutputError: ``remote.read``.
    """
    url = f"hf://{name}" + (f"@{revision}" if revision else "")
    info = retried(lambda: _asked(name, revision, url), url)
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return {
        file.rfilename: HttpFile(
            hf_hub_url(name, file.rfilename, revision=info.sha),
            headers,
            shown=f"hf://{name}/{file.rfilename}",
            size=file.size,
            state=f"{info.sha} {file.rfilename}",
        )
        for file in info.siblings or ()
    }


def _asked(name: str, revision: str | None, url: str) -> ModelInfo:
    try:
        return HfApi().model_info(name, revision=revision, files_metadata=True)
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status == 404:
            raise InputError("input.missing", "there is no such repository or revision", path=url) from error
        if status in (401, 403):
            hint = "hf auth login"
            raise InputError("input.unreadable", "is not there, or not open to you", path=url, hint=hint) from error
        raise ConnectionError(f"HTTP status {status}") from error
    except HFValidationError as error:
        raise InputError("input.missing", "is not the name of a repository", path=url) from error
    except OSError:
        raise
    except Exception as error:  # of the library that it asks with
        raise ConnectionError(short(str(error))) from error
